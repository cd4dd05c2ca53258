"""Requests of sessions as they are made: traced, where somebody records."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from pagemesh.decode.active_request import ActiveRequest
from pagemesh.decode.outbox import OutputSink
from pagemesh.decode.remote_prefill import Prefiller
from pagemesh.decode.submission import Submission
from pagemesh.worker.worker import Worker

MakeRequest = Callable[[OutputSink, Submission, Callable[[int], None]], ActiveRequest]
"""Gives a request that is not started yet, from where its outputs go, what it is, and who is told of its end."""


def request_maker(worker: Worker, prefiller: Prefiller) -> MakeRequest:
    """What makes a worker's requests; what spans need is loaded only where they are wanted."""
    if worker.tracing.tracer is None:
        return partial(ActiveRequest, worker, prefiller)
    from pagemesh.decode.traced_requests import TracedRequests

    return TracedRequests(worker, prefiller, worker.tracing.tracer).make
