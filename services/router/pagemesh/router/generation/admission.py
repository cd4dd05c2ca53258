"""Bounds how many requests are in progress at once."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from pagemesh.errors import OverloadedError, RateLimitError
from pagemesh.router.tenants.allowance import LIMIT_NAMES
from pagemesh.router.tenants.caller import current_caller
from pagemesh.telemetry.metrics import REQUESTS_IN_PROGRESS, REQUESTS_REFUSED, Metrics


class Admission:
    """Places for requests; nobody waits for one."""

    def __init__(self, max_requests: int, metrics: Metrics) -> None:
        self._max_requests = max_requests
        self._num_requests = 0
        refused = metrics.counter(REQUESTS_REFUSED)
        self._refused = {name: refused.labels(name) for name in LIMIT_NAMES}
        self._gauge = metrics.gauge(REQUESTS_IN_PROGRESS)

    @contextmanager
    def place(self) -> Iterator[None]:
        """Hold one place; OverloadedError when none is free, RateLimitError when its tenant had its share.

        What is raised within counts likewise: how many tokens a request needs is known later.
        """
        if self._num_requests >= self._max_requests:
            raise OverloadedError(
                f"the router has {self._num_requests} requests in progress, its limit; "
                "try again later"
            )
        self._change(1)
        try:
            with current_caller().allowance.request():
                yield
        except RateLimitError as error:
            self._refused[error.limit].inc()
            raise
        finally:
            self._change(-1)

    def _change(self, by: int) -> None:
        self._num_requests += by
        self._gauge.set(self._num_requests)
