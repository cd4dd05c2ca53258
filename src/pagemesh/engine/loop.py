"""The engine's loop: commands, schedule, launch, complete, deliver; and again.

Commands come from any thread and are run in order by the engine's own. What becomes known goes to one listener, one
message at a time. What fails in a step shows when the step completes, in its turn.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import replace
from functools import partial

import structlog

from pagemesh.core.engine import StepListener, StepOutput
from pagemesh.core.kv import KvLayout, KvProgress
from pagemesh.core.load import EngineLoad
from pagemesh.core.request import FinishReason
from pagemesh.engine.runner import LayerProgress, PendingStep, Runner, watched_layers
from pagemesh.engine.shared_cores import SharedCores
from pagemesh.errors import DeviceLostError, InternalError, PagemeshError
from pagemesh.scheduler.batch import Batch, BlockMoves, ExportedChunk, StepResult
from pagemesh.scheduler.scheduler import Scheduler

log = structlog.get_logger(__name__)


class EngineLoop:
    """Runs on the engine thread, to which scheduler and runner belong.

    Where steps overlap, a batch is planned and launched while the one before it computes, and is completed when
    that one is: the device always has the next one waiting. Else each is completed before the next is planned.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        runner: Runner,
        commands: CommandQueue,
        notifier: StepNotifier,
        *,
        overlaps: bool = False,
        cores: SharedCores | None = None,
    ) -> None:
        self._scheduler = scheduler
        self._runner = runner
        self._commands = commands
        self._notifier = notifier
        self._overlaps = overlaps
        self._cores = cores
        self._in_flight: InFlightStep | None = None
        self._computing_since: float | None = None

    def seconds_in_step(self) -> float:
        """How long the first batch in flight has been computing, 0 without one; any thread."""
        since = self._computing_since
        return 0.0 if since is None else time.perf_counter() - since

    def run(self, listener: StepListener) -> None:
        """Loop until the commands are closed; every request has ended when this returns."""
        self._notifier.open(listener)
        error: PagemeshError | None = None
        try:
            computed = True
            while self._commands.run(wait=not computed):
                computed = self._step()
                if not computed and self._cores is not None:
                    self._cores.rest()
            if self._in_flight is not None:
                self._complete(self._in_flight)
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
        self._notifier.close()
        if self._cores is not None:
            self._cores.rest()

    def _step(self) -> bool:
        """Launch one batch and complete one; False when there was nothing to compute."""
        earlier = self._in_flight
        batch = self._scheduler.schedule()
        move_seconds = self._move(batch.moves)
        # What commands and admissions made known does not wait for the device; the load alone does.
        self._deliver(load_is_news=not (batch.sequences or earlier))
        step = self._in_flight = self._launch(batch, move_seconds) if batch.sequences else None
        if earlier is not None:
            self._complete(earlier)
        if step is None:
            return earlier is not None
        step.sample()
        if not self._overlaps or step.has_failed:
            self._in_flight = None
            self._complete(step)
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

    def _launch(self, batch: Batch, move_seconds: float) -> InFlightStep:
        if self._computing_since is None:
            self._computing_since = time.perf_counter()
        return InFlightStep(self._runner, batch, move_seconds, self._notifier.progress(batch))

    def _complete(self, step: InFlightStep) -> None:
        """Wait for the first batch in flight and make known what it brought."""
        batch = step.batch
        try:
            result = step.result()
        except DeviceLostError:
            raise
        except Exception as error:
            # Boundary to the device: a failing batch costs its own requests, not the worker.
            self._end_step(step)
            log.exception("batch failed", request_ids=[s.request_id for s in batch.sequences])
            message = f"the batch could not be computed: {type(error).__name__}: {error}"
            self._scheduler.fail(batch, InternalError(message))
        else:
            self._scheduler.observe(batch, step.move_seconds, self._end_step(step))
            self._scheduler.update(batch, result)
        self._deliver()

    def _end_step(self, step: InFlightStep) -> float:
        """Seconds that the batch was computing; if another is in flight, that one is from now on."""
        seconds = self.seconds_in_step()
        is_last = self._in_flight is None or self._in_flight is step
        self._computing_since = None if is_last else time.perf_counter()
        return seconds

    def _deliver(self, *, load_is_news: bool = True) -> None:
        load = self._scheduler.load()
        if self._cores is not None:
            load = replace(load, cores=self._cores.count())
        output = self._scheduler.take_output(load, load_is_news=load_is_news)
        self._notifier.tell(load, output)


Command = Callable[[], None]


class CommandQueue:
    """A queue of calls that can be closed; what was queued before is still run."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._commands: deque[Command] = deque()
        self._closed = False

    def put(self, command: Command) -> bool:
        """Queue a call; False, without effect, once the queue is closed."""
        with self._changed:
            if self._closed:
                return False
            self._commands.append(command)
            self._changed.notify()
            return True

    def run(self, wait: bool) -> bool:
        """Run everything queued, first waiting for something if told so; False once it is closed.

        A call that raises is gone, the ones behind it are still queued.
        """
        with self._changed:
            # Without a deadline: an engine with nothing to compute can only be changed by a command,
            # and closing ends the wait as well.
            self._changed.wait_for(lambda: self._commands or self._closed or not wait)
            num_commands = len(self._commands)
            is_open = not self._closed
        for _ in range(num_commands):
            self._commands.popleft()()
        return is_open

    def close(self) -> None:
        """Refuse further commands. Idempotent."""
        with self._changed:
            self._closed = True
            self._changed.notify()


class StepNotifier:
    """Calls the listener: between steps by the loop, and within steps by whoever sees layers get ready."""

    def __init__(self, layout: KvLayout, load: EngineLoad) -> None:
        self.load = load
        """The load after the last step; replaced as a whole, so any thread may read it."""
        self._layout = layout
        self._listener: StepListener | None = None
        # Also for the load: an old one must not be told behind a new one.
        self._telling = threading.Lock()

    def open(self, listener: StepListener) -> None:
        """Tell this listener from now on."""
        self._listener = listener

    def close(self) -> None:
        """Tell nobody any more: whoever waits for a device may be late."""
        with self._telling:
            self._listener = None

    def tell(self, load: EngineLoad, output: StepOutput | None) -> None:
        """The load, and everything that became known with it, if anything did."""
        with self._telling:
            self.load = load
            if output is not None:
                self._call(output)

    def progress(self, batch: Batch) -> LayerProgress | None:
        """Tells of the batch's exports, layer by layer; None for a batch with nothing to tell of so early."""
        if not batch.exports:
            return None
        num_tokens = sum(chunk.num_new_tokens for chunk in batch.exports)
        num_layers = watched_layers(self._layout, num_tokens)
        if not num_layers:
            return None
        return LayerProgress(num_layers, partial(self._tell_layers, batch.exports))

    def _tell_layers(self, exports: tuple[ExportedChunk, ...], num_layers: int) -> None:
        progress = tuple(KvProgress(e.request_id, e.num_tokens, num_layers) for e in exports)
        with self._telling:
            self._call(StepOutput(progress=progress, load=self.load))

    def _call(self, output: StepOutput) -> None:
        if self._listener is None:
            return
        try:
            self._listener(output)
        except Exception:
            # Boundary to the service: its bug must not end other requests.
            log.exception("engine listener failed")


class InFlightStep:
    """One batch on the device."""

    def __init__(
        self,
        runner: Runner,
        batch: Batch,
        move_seconds: float,
        progress: LayerProgress | None = None,
    ) -> None:
        """Launch the batch, whose moves took so long; see `Runner.launch`."""
        self.batch = batch
        self.move_seconds = move_seconds
        self._step: PendingStep | None = None
        self._error: Exception | None = None
        try:
            self._step = runner.launch(batch, progress)
        except Exception as error:
            # Boundary to the device, like those below.
            self._error = error

    @property
    def has_failed(self) -> bool:
        """Whether it is known already that `result` will raise: no step can build on this one."""
        return self._error is not None

    def sample(self) -> None:
        """See `PendingStep`; after a failure there is nothing to sample."""
        if self._step is None or self._error is not None:
            return
        try:
            self._step.sample()
        except Exception as error:
            self._error = error

    def result(self) -> StepResult:
        """Wait for the batch; raises what it failed with, here or earlier."""
        if self._error is not None:
            raise self._error
        assert self._step is not None, "it was launched"
        result = self._step.result()
        num_sampled, counts = len(result.token_ids), result.num_sampled
        num_expected = sum(sequence.sampling is not None for sequence in self.batch.sequences)
        fits = (
            num_sampled == num_expected
            if counts is None
            else num_sampled == sum(counts) and num_expected == len(counts)
        )
        if not fits:
            raise InternalError(f"{num_sampled} tokens sampled for {num_expected} sequences")
        return result
