"""Bounds how many requests the router takes."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from pagemesh.errors import OverloadedError, RateLimitError
from pagemesh.router.dispatch.dispatch import Dispatch
from pagemesh.router.dispatch.waiting_room import WaitingRoom
from pagemesh.router.tenants.allowance import LIMIT_NAMES
from pagemesh.router.tenants.caller import current_caller
from pagemesh.router.tenants.tenant import Tenant
from pagemesh.telemetry.metrics import Metrics
from pagemesh.telemetry.metrics.admission import (
    ADMISSION_REJECTIONS,
    REQUESTS_IN_PROGRESS,
    REQUESTS_REFUSED,
)
from pagemesh.telemetry.metrics.registry import ModelMetrics

_QUEUE_FULL = "queue_full"


class Admission:
    """Places for requests; nobody waits for one."""

    def __init__(self, room: WaitingRoom, dispatches: Sequence[Dispatch], metrics: Metrics) -> None:
        """The room is for what no worker has yet: what is read and made ready, and what waits to be dispatched."""
        self._room = room
        self._dispatches = dispatches
        self._num_requests = 0
        refused = metrics.counter(REQUESTS_REFUSED)
        self._refused = {name: refused.labels(name) for name in (*LIMIT_NAMES, _QUEUE_FULL)}
        # It is refused before its model is known: the places are for all models together.
        all_models = ModelMetrics(metrics, ",".join(each.model_name for each in dispatches))
        self._rejected = all_models.counters(ADMISSION_REJECTIONS)["max_num_queued_reqs",]
        self._gauge = metrics.gauge(REQUESTS_IN_PROGRESS)

    @property
    def num_requests(self) -> int:
        """Those that hold a place, whether a worker has them or not."""
        return self._num_requests

    @contextmanager
    def place(self) -> Iterator[None]:
        """Hold one place; OverloadedError when none is free, RateLimitError when its tenant had its share.

        What is raised within counts likewise: how many tokens a request needs is known later.
        """
        caller = current_caller()
        tenant = caller.tenant
        if not self._room.has_place(tenant.name, tenant.limits.weight):
            self._refused[_QUEUE_FULL].inc()
            self._rejected.inc()
            raise self._refusal(tenant)
        self._room.enter(tenant.name)
        self._change(1)
        try:
            with caller.allowance.request():
                yield
        except RateLimitError as error:
            self._refused[error.limit].inc()
            raise
        finally:
            self._change(-1)
            self._room.leave(tenant.name)

    def _refusal(self, tenant: Tenant) -> OverloadedError:
        room = self._room
        wait = max((each.retry_after(tenant.name) for each in self._dispatches), default=0.0)
        waiting = f"{room.num_waiting} requests waiting"
        if tenant.name:
            waiting += f", {room.num_waiting_of(tenant.name)} of them of {tenant.name!r}"
        return OverloadedError(
            f"the router has {waiting}, and places for {room.num_places}; try again in "
            f"{max(1, math.ceil(wait))} s",
            retry_after=max(1.0, wait),
        )

    def _change(self, by: int) -> None:
        self._num_requests += by
        self._gauge.set(self._num_requests)
