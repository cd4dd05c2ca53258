"""Bounds how many requests are in progress at once."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from pagemesh.errors import OverloadedError
from pagemesh.telemetry.metrics import REQUESTS_IN_PROGRESS, Metrics


class Admission:
    """Places for requests; nobody waits for one."""

    def __init__(self, max_requests: int, model_name: str, metrics: Metrics) -> None:
        self._max_requests = max_requests
        self._num_requests = 0
        self._gauge = metrics.gauge(REQUESTS_IN_PROGRESS).labels(model_name)

    @contextmanager
    def place(self) -> Iterator[None]:
        """Hold one place; raises OverloadedError when none is free."""
        if self._num_requests >= self._max_requests:
            raise OverloadedError(
                f"the router has {self._num_requests} requests in progress, its limit; "
                "try again later"
            )
        self._change(1)
        try:
            yield
        finally:
            self._change(-1)

    def _change(self, by: int) -> None:
        self._num_requests += by
        self._gauge.set(self._num_requests)
