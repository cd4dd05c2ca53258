"""Requests whose workers are lost go on elsewhere: how often, how long it is tried, and what is counted.

A worker that dies costs its requests a pause. One request that kills its workers must not take all of them
along, so it moves only so often; what a worker that stops in order hands over moves as often as it has to.
(NVIDIA Dynamo's migration and its limit are the same idea.)
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Final, NamedTuple

import structlog

from pagemesh.config import MigrationConfig
from pagemesh.errors import DeviceLostError, PagemeshError, UnavailableError, WorkerLostError
from pagemesh.router.placed_request import PlacedRequest
from pagemesh.router.poison import Suspects
from pagemesh.rpc.status import as_pagemesh_error
from pagemesh.telemetry.metrics import Metrics
from pagemesh.telemetry.metrics.routing import (
    ARITHMETIC_CHANGES,
    MIGRATION_PAUSE,
    REQUESTS_RESUBMITTED,
)
from pagemesh.v1 import decode_pb2, types_pb2

_log = structlog.get_logger(__name__)

RETRY_INTERVAL_S: Final = 0.05
"""Between two looks for a worker, as long as there is none."""

_NOBODY: Final[frozenset[str]] = frozenset()

_DEATHS: Final = (WorkerLostError.default_reason, DeviceLostError.default_reason)
"""Why a worker ends what it runs when it dies."""

Resend = Callable[[int, frozenset[str]], Awaitable[None]]
"""Places an order's request of this index on a worker other than these, and sends it there; raises a
PagemeshError, UnavailableError when there is nobody at the moment."""


class Migrations:
    """What holds for all requests of a router that move."""

    def __init__(self, config: MigrationConfig, metrics: Metrics) -> None:
        self.limit = config.migration_limit
        self.suspects = Suspects(config.poison_limit, metrics)
        self.timeout = config.migration_timeout
        self.resubmitted = metrics.counter(REQUESTS_RESUBMITTED)
        self.arithmetic_changes = metrics.counter(ARITHMETIC_CHANGES)
        self.pause = metrics.histogram(MIGRATION_PAUSE)


class _SuspectsEverywhereError(Exception):
    """Each worker that would take a suspect has one."""


class _Lost(NamedTuple):
    """A request without a worker."""

    placed: PlacedRequest
    worker_id: str
    cause: PagemeshError
    """That its client is told when nobody takes it over."""
    is_moved: bool
    """Whether the worker is about to stop, and has handed it over."""


class Migrator:
    """Moves the requests of one order, one after the other, beside whoever reads what they answer.

    Belongs to one event loop. `close` has to follow.
    """

    def __init__(
        self,
        migrations: Migrations,
        resend: Resend,
        asked: Callable[[int], decode_pb2.Submit],
        fail: Callable[[PagemeshError], None],
    ) -> None:
        """`asked` gives what its first worker was asked for, by index; `fail` is told when it cannot be moved."""
        self._migrations = migrations
        self._resend = resend
        self._asked = asked
        self._fail = fail
        self._lost: deque[_Lost] = deque()
        self._task: asyncio.Task[None] | None = None

    def lose(self, placed: PlacedRequest, output: decode_pb2.RequestOutput) -> None:
        """A worker has ended a request with this instead of finishing it: have it go on elsewhere.

        Raises what its client is to be told when it must not.
        """
        cause = _cause(placed, output)
        placement = placed.placement
        assert placement is not None, "what is placed nowhere is sent nothing"
        is_moved = output.finish_reason == types_pb2.FINISH_REASON_MOVED
        suspects = self._migrations.suspects
        if not is_moved:
            placed.num_losses += 1
            placed.suspicion.on_loss(is_death=cause.reason in _DEATHS)
        if suspects.is_poison(placed.suspicion.num_fruitless):
            submit = self._asked(placed.index)
            submit.request_id = placed.request_id
            raise suspects.refuse(submit, placed.suspicion.num_fruitless)
        if (
            not isinstance(cause, (UnavailableError, DeviceLostError))
            or placed.num_losses > self._migrations.limit
        ):
            raise cause
        placed.lose(keeps_kv=is_moved)
        self._lost.append(_Lost(placed, placement.route.decode.worker_id, cause, is_moved))
        if self._task is None:
            self._task = asyncio.create_task(self._run(), name="migrator")

    def on_ready(self, placed: PlacedRequest) -> None:
        """A request's KV is where it runs, with a token behind it."""
        pause = placed.settle()
        if pause is not None:
            self._migrations.pause.observe(pause)

    def close(self) -> None:
        """Move nothing any more. Idempotent."""
        if self._task is not None:
            self._task.cancel()

    async def _run(self) -> None:
        try:
            while self._lost:
                await self._move(self._lost.popleft())
        except Exception as error:
            # Task boundary: whoever reads the answers would wait for ever.
            if not isinstance(error, PagemeshError):
                _log.exception("migration failed")
            self._fail(as_pagemesh_error(error))
        else:
            self._task = None

    async def _move(self, lost: _Lost) -> None:
        """Try until somebody takes it; raises what made it lose its worker when nobody does in time."""
        loop = asyncio.get_running_loop()
        until = loop.time() + self._migrations.timeout
        excluded = frozenset({lost.worker_id})
        while True:
            try:
                await self._send_again(lost.placed, excluded)
                break
            except _SuspectsEverywhereError:
                until = loop.time() + self._migrations.timeout
            except UnavailableError:
                if loop.time() >= until:
                    # That there is nobody else is not what went wrong.
                    raise lost.cause from None
            # By now it may be back, under its name.
            excluded = _NOBODY
            await asyncio.sleep(RETRY_INTERVAL_S)
        self._note(lost)

    async def _send_again(self, placed: PlacedRequest, excluded: frozenset[str]) -> None:
        """Where no other suspect is, if it is one, and when no other part of the order is."""
        if not placed.suspicion.num_fruitless:
            await self._resend(placed.index, excluded)
            return
        if placed.suspicion.has_company:
            raise _SuspectsEverywhereError("another part of the request is tried")
        suspects = self._migrations.suspects
        async with suspects.turn:
            busy = suspects.busy()
            try:
                await self._resend(placed.index, excluded | busy)
            except UnavailableError as error:
                if busy:
                    raise _SuspectsEverywhereError(error.message) from error
                raise
            assert placed.placement is not None, "it was just placed"
            placed.suspicion.enter(suspects.admit(placed.placement.route.decode.worker_id))

    def _note(self, lost: _Lost) -> None:
        """Somebody has taken it."""
        placed, why = lost.placed, "drain" if lost.is_moved else "lost"
        self._migrations.resubmitted.labels(why).inc()
        _log.info(
            "request moved",
            request_id=placed.request_id,
            from_worker=lost.worker_id,
            reason=lost.cause.reason,
        )
        if placed.has_changed_arithmetic:
            self._migrations.arithmetic_changes.labels(why).inc()
            assert placed.placement is not None, "it was just placed"
            facts = placed.placement.route.decode.facts
            _log.warning(
                "request goes on with other arithmetic",
                request_id=placed.request_id,
                from_worker=lost.worker_id,
                from_arithmetic=placed.arithmetic,
                to_worker=facts.worker_id,
                to_arithmetic=facts.arithmetic,
            )


def _cause(placed: PlacedRequest, output: decode_pb2.RequestOutput) -> PagemeshError:
    if output.finish_reason == types_pb2.FINISH_REASON_ERROR:
        return placed.error(output.error)
    return UnavailableError("the worker stopped before the request was over", reason="DRAINING")
