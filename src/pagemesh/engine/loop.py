"""The engine's loop: commands, schedule, launch, land, deliver; and again."""

from __future__ import annotations

import time
from dataclasses import replace

import structlog

from pagemesh.core.engine import StepListener
from pagemesh.core.request import FinishReason
from pagemesh.engine.commands import CommandQueue
from pagemesh.engine.delivery import Delivery
from pagemesh.engine.flight import Flight
from pagemesh.engine.runner import Runner
from pagemesh.engine.shared_cores import SharedCores
from pagemesh.errors import DeviceLostError, InternalError, PagemeshError
from pagemesh.scheduler.batch import Batch, BlockMoves
from pagemesh.scheduler.scheduler import Scheduler

log = structlog.get_logger(__name__)


class EngineLoop:
    """Runs on the engine thread, to which scheduler and runner belong.

    Where steps overlap, a batch is planned and launched while the one before it computes, and lands when
    that has landed: the device always has the next one waiting. Else each lands before the next is planned.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        runner: Runner,
        commands: CommandQueue,
        delivery: Delivery,
        *,
        overlaps: bool = False,
        cores: SharedCores | None = None,
    ) -> None:
        self._scheduler = scheduler
        self._runner = runner
        self._commands = commands
        self._delivery = delivery
        self._overlaps = overlaps
        self._cores = cores
        self._flight: Flight | None = None
        self._computing_since: float | None = None

    def seconds_in_step(self) -> float:
        """How long the first batch in flight has been computing, 0 without one; any thread."""
        since = self._computing_since
        return 0.0 if since is None else time.perf_counter() - since

    def run(self, listener: StepListener) -> None:
        """Loop until the commands are closed; every request has ended when this returns."""
        self._delivery.open(listener)
        error: PagemeshError | None = None
        try:
            computed = True
            while self._commands.run(wait=not computed):
                computed = self._step()
                if not computed and self._cores is not None:
                    self._cores.rest()
            if self._flight is not None:
                self._land(self._flight)
        except DeviceLostError as lost:
            # Whatever is tried next would fail as well. The process ends, and another one may do better.
            log.critical("engine stopped: its device is lost", error=lost.message)
            error = lost
        except Exception:
            # A bug. What the scheduler believes about blocks cannot be trusted any more, and wrong
            # tokens are worse than none: every request ends, and new ones are refused.
            log.critical("engine stopped by a bug", exc_info=True)
            error = InternalError("the engine was stopped by a bug")
        self._commands.close()
        self._commands.run(wait=False)
        reason = FinishReason.CANCELLED if error is None else FinishReason.ERROR
        for request in self._scheduler.requests.live():
            try:
                self._scheduler.requests.finish(request, reason, error)
            except Exception:
                # The same bug, which has made known the request's end, but not given its blocks back:
                # those behind it must not wait for ever.
                log.exception("request could not be given up", request_id=request.request_id)
        self._deliver()
        self._delivery.close()
        if self._cores is not None:
            self._cores.rest()

    def _step(self) -> bool:
        """Launch one batch and land one; False when there was nothing to compute."""
        earlier = self._flight
        batch = self._scheduler.schedule()
        move_seconds = self._move(batch.moves)
        # What commands and admissions made known does not wait for the device; the load alone does.
        self._deliver(load_is_news=not (batch.sequences or earlier))
        flight = self._flight = self._launch(batch, move_seconds) if batch.sequences else None
        if earlier is not None:
            self._land(earlier)
        if flight is None:
            return earlier is not None
        flight.sample()
        if not self._overlaps or flight.has_failed:
            self._flight = None
            self._land(flight)
        return True

    def _move(self, moves: BlockMoves) -> float:
        """Do a batch's moves; gives the seconds that they took.

        First of all: a block whose KV leaves it may have been granted to an importer, who writes into it
        as soon as it knows. A failure is none of the batch's own: nobody's KV could be trusted after it.
        """
        if not moves:
            return 0.0
        started_at = time.perf_counter()
        self._runner.move(moves)
        return time.perf_counter() - started_at

    def _launch(self, batch: Batch, move_seconds: float) -> Flight:
        if self._computing_since is None:
            self._computing_since = time.perf_counter()
        return Flight(self._runner, batch, move_seconds, self._delivery.watch(batch))

    def _land(self, flight: Flight) -> None:
        """Wait for the first batch in flight and make known what it brought."""
        batch = flight.batch
        try:
            result = flight.result()
        except DeviceLostError:
            raise
        except Exception as error:
            # Boundary to the device: a failing batch costs its own requests, not the worker.
            self._end_step(flight)
            log.exception("batch failed", request_ids=[s.request_id for s in batch.sequences])
            message = f"the batch could not be computed: {type(error).__name__}: {error}"
            self._scheduler.fail(batch, InternalError(message))
        else:
            self._scheduler.observe(batch, flight.move_seconds, self._end_step(flight))
            self._scheduler.update(batch, result)
        self._deliver()

    def _end_step(self, flight: Flight) -> float:
        """Seconds that the batch was computing; if another is in flight, that one is from now on."""
        seconds = self.seconds_in_step()
        is_last = self._flight is None or self._flight is flight
        self._computing_since = None if is_last else time.perf_counter()
        return seconds

    def _deliver(self, *, load_is_news: bool = True) -> None:
        load = self._scheduler.load()
        if self._cores is not None:
            load = replace(load, cores=self._cores.count())
        output = self._scheduler.take_output(load, load_is_news=load_is_news)
        self._delivery.tell(load, output)
