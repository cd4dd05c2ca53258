"""The engine in this process: every call is a command for the engine thread."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from functools import partial
from typing import Final

import structlog

from pagemesh.core.engine import EngineInfo, StepListener, StepOutput
from pagemesh.core.kv import KvAccess
from pagemesh.core.load import EngineLoad
from pagemesh.core.request import EngineRequest
from pagemesh.engine.constraints import ConstraintSource, no_backend
from pagemesh.engine.loop import CommandQueue, EngineLoop, StepNotifier
from pagemesh.engine.runner import Runner
from pagemesh.engine.shared_cores import SharedCores
from pagemesh.errors import InternalError, PagemeshError, UnavailableError
from pagemesh.sampling.logprobs import TokenLogprobs
from pagemesh.sampling.structured.compiler import GrammarCompiler
from pagemesh.scheduler.request_table import RequestTable
from pagemesh.scheduler.scheduler import Scheduler

log = structlog.get_logger(__name__)


STEP_TIMEOUT: Final = 600.0
"""Seconds after which a step hangs in an engine that was not told otherwise."""


class EngineCore:
    """Continuous batching over paged KV; implements `pagemesh.core.engine.Engine`."""

    def __init__(
        self,
        info: EngineInfo,
        scheduler: Scheduler,
        runner: Runner,
        kv: KvAccess,
        grammars: GrammarCompiler | None = None,
        stop_timeout: float = 10.0,
        step_timeout: float = STEP_TIMEOUT,
        overlaps: bool = False,
        release: Callable[[], None] = lambda: None,
        cores: SharedCores | None = None,
    ) -> None:
        """`overlaps` says whether a step is prepared and launched while the one before it computes;
        `release` is called once when nothing is computed any more, see `EngineParts`. `cores` are those that
        the runner computes on, where other workers use them as well."""
        self._info = info
        self._requests = scheduler.requests
        self._scheduler = scheduler
        self._kv = kv
        self._stop_timeout = stop_timeout
        self._step_timeout = step_timeout
        self._commands = CommandQueue()
        self._constraints = ConstraintSource(
            grammars or GrammarCompiler(no_backend), self._commands, scheduler.constraints
        )
        self._notifier = StepNotifier(info.layout, scheduler.load())
        self._loop = EngineLoop(
            scheduler, runner, self._commands, self._notifier, overlaps=overlaps, cores=cores
        )
        self._thread: threading.Thread | None = None
        self._release = release
        self._released = threading.Lock()

    @property
    def info(self) -> EngineInfo:
        """Facts that do not change while the engine lives."""
        return self._info

    @property
    def kv(self) -> KvAccess:
        """Access to the paged KV for exports and imports."""
        return self._kv

    def load(self) -> EngineLoad:
        """The load after the last step."""
        return self._notifier.load

    def start(self, listener: StepListener) -> None:
        """Start the thread; once."""
        assert self._thread is None, "the engine was started before"
        # A daemon: a step that hangs in the device must not keep the process from exiting.
        self._thread = threading.Thread(
            target=self._loop.run, args=(listener,), name="engine", daemon=True
        )
        self._thread.start()

    def check(self) -> None:
        """Raise InternalError when a started engine will never answer: its thread ended, or hangs.

        Also after `stop`: whoever asks then has the last outputs already. For those who wait.
        """
        if self._thread is not None and not self._thread.is_alive():
            raise InternalError("the engine's thread has ended")
        seconds = self._loop.seconds_in_step()
        if seconds > self._step_timeout:
            raise InternalError(
                f"the engine hangs: a step has been computing for {seconds:.0f} s, of which"
                f" {self._step_timeout:.0f} s are allowed"
            )

    def submit(self, request: EngineRequest) -> None:
        """Queue a request; raises UnavailableError when the engine is stopped."""
        if not self._commands.put(partial(self._requests.submit, request)):
            raise UnavailableError("the engine is stopped")
        self._constraints.prepare(request)

    def cancel(self, request_id: str) -> None:
        """End a request with CANCELLED."""
        self._commands.put(partial(self._requests.cancel, request_id))
        self._constraints.withdraw(request_id)

    def release(self, request_id: str) -> None:
        """End an export or a pin."""
        self._commands.put(partial(self._requests.release, request_id))
        self._constraints.withdraw(request_id, exports_only=True)

    def first_token(
        self, request_id: str, token_id: int, logprobs: TokenLogprobs | None = None
    ) -> None:
        """Report an import's first token; it is delivered at once."""
        self._commands.put(partial(self._requests.first_token, request_id, token_id, logprobs))

    def finish_import(self, request_id: str, num_valid_tokens: int) -> None:
        """End an import's lease."""
        self._commands.put(partial(self._requests.finish_import, request_id, num_valid_tokens))

    def pin(self, request_id: str, block_hashes: Sequence[bytes]) -> Future[tuple[int, ...]]:
        """Hold cached blocks until `release`; the future fails when the engine is stopped."""
        future: Future[tuple[int, ...]] = Future()
        command = partial(_pin, self._requests, future, request_id, tuple(block_hashes))
        if not self._commands.put(command):
            future.set_exception(UnavailableError("the engine is stopped"))
        return future

    def publish_snapshot(self) -> None:
        """Have the next StepOutput name all cached blocks."""
        self._commands.put(self._scheduler.want_snapshot)

    def stop(self) -> None:
        """Cancel everything, deliver the last outputs and join the thread for `stop_timeout` seconds."""
        self._commands.close()
        self._constraints.close()
        if self._thread is None:
            self._loop.run(_nobody)
            self._give_back()
        elif self._thread is not threading.current_thread():
            self._thread.join(self._stop_timeout)
            if self._thread.is_alive():
                log.error("engine thread did not stop in time", timeout=self._stop_timeout)
            else:
                self._give_back()

    def _give_back(self) -> None:
        # Never released again: several threads may stop an engine, and each of them again.
        if self._released.acquire(blocking=False):
            self._release()


def _pin(
    requests: RequestTable,
    future: Future[tuple[int, ...]],
    pin_id: str,
    block_hashes: tuple[bytes, ...],
) -> None:
    """On the engine's thread: resolve a future that was not given up."""
    if not future.set_running_or_notify_cancel():
        return
    try:
        future.set_result(requests.pin(pin_id, block_hashes))
    except PagemeshError as error:
        future.set_exception(error)


def _nobody(output: StepOutput) -> None:
    """Listens to an engine that was never started."""
