"""A mesh that has as much to do as it takes: its only worker, its queue, or both."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any

from pagemesh.config import SchedulerConfig
from pagemesh.router.dispatch.seating import MIN_AHEAD
from tests.contract.http_answers import http_body, pairs
from tests.contract.router_harness import Mesh, eventually, running_mesh

NUM_TAKEN = 1 + MIN_AHEAD
"""Requests that are let through to a worker with one slot."""

LONG = {"prompt": list(range(300, 316)), "max_tokens": 400, "ignore_eos": True, "stream": True}


def num_queued(mesh: Mesh) -> float:
    """Requests in the router's queue."""
    return mesh.metric_now('pagemesh:requests_queued{model_name="demo"}')


async def await_queue(mesh: Mesh, num_requests: int) -> None:
    """Wait until so many requests are in the router's queue."""
    await eventually(lambda: num_queued(mesh) == num_requests)


def one_seat(**settings: Any) -> AbstractAsyncContextManager[Mesh]:
    """A mesh whose only worker runs one request at a time, slowly."""
    settings.setdefault("seconds_per_token", 0.02)
    return running_mesh(scheduler=SchedulerConfig(max_num_seqs=1), **settings)


@asynccontextmanager
async def occupied(mesh: Mesh, num_requests: int, **metadata: str) -> AsyncIterator[None]:
    """So many long requests on an idle mesh, which leave with the block; more than `NUM_TAKEN` queue."""
    first = mesh.openai.Completions(http_body(LONG), metadata=pairs(metadata))
    await first.read()
    calls = [first]
    for _ in range(num_requests - 1):
        calls.append(mesh.openai.Completions(http_body(LONG), metadata=pairs(metadata)))
    await await_queue(mesh, max(0, num_requests - NUM_TAKEN))
    yield
    for call in calls:
        call.cancel()
    await eventually(lambda: all(call.done() for call in calls))
