"""Compiles grammars on a thread of its own and keeps the latest."""

from __future__ import annotations

import queue
import threading
from collections import Counter, OrderedDict
from collections.abc import Callable
from concurrent.futures import Future
from typing import Final, Protocol, TypeVar

import structlog

from pagemesh.errors import InternalError, PagemeshError, UnavailableError
from pagemesh.sampling.structured.constraint import Grammar, GrammarBackend
from pagemesh.sampling.structured.outputs import StructuredOutputs
from pagemesh.sampling.structured.trial import GrammarTrial

log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)

MAX_GRAMMARS: Final = 128
"""Grammars that are kept: services ask for the same few again and again."""

MAX_KEPT_CHARS: Final = 2**20
"""Length of all their texts together: a grammar takes up to 350 bytes of memory for each character."""

_STACK_BYTES: Final = 64 * 2**20
"""Address space, of which only what is used takes memory. The library follows a grammar's rules by
recursion without a limit, which ends the process where the stack does; the longest chain of rules that is
allowed needs nearly the usual 8 MiB."""

_CLOSE_TIMEOUT: Final = 2.0

_starting = threading.Lock()
"""Threads get the stack size that is set for the whole process when they start."""

GrammarFuture = Future[Grammar]

_Result = TypeVar("_Result")


class Trial(Protocol):
    """Where grammars are tried before they are compiled; one thread at a time."""

    def check(self, outputs: StructuredOutputs) -> None:
        """InvalidRequestError for one that the engine would not survive."""
        ...

    def close(self) -> None:
        """End what is tried. Idempotent."""
        ...


class GrammarCompiler:
    """Any thread may ask; grammars are compiled one after the other on a thread, behind a trial in a process.

    All of them come with the first request. close: nothing is compiled any more. Idempotent.
    """

    def __init__(
        self,
        load_backend: Callable[[], GrammarBackend],
        *,
        trial: Trial | None = None,
        max_grammars: int = MAX_GRAMMARS,
        max_kept_chars: int = MAX_KEPT_CHARS,
    ) -> None:
        self._load_backend = load_backend
        self._trial = trial or GrammarTrial()
        self._max_grammars = max_grammars
        self._max_kept_chars = max_kept_chars
        self._lock = threading.Lock()
        self._futures: OrderedDict[StructuredOutputs, GrammarFuture] = OrderedDict()
        # Of what is not compiled yet: how many asked for it and did not withdraw.
        self._num_waiting: Counter[GrammarFuture] = Counter()
        self._jobs: queue.SimpleQueue[tuple[StructuredOutputs, GrammarFuture] | None] = (
            queue.SimpleQueue()
        )
        self._thread: threading.Thread | None = None
        self._backend: GrammarBackend | None = None
        self._closed = False

    def compile(self, outputs: StructuredOutputs) -> GrammarFuture:
        """The grammar, at once if it is kept. Never raises; the future fails with a PagemeshError:

        InvalidRequestError when it cannot be compiled, UnsupportedError when the model has no use for
        grammars, UnavailableError when closed.
        """
        with self._lock:
            future = self._futures.get(outputs)
            if future is not None:
                self._futures.move_to_end(outputs)
                if not future.done():
                    self._num_waiting[future] += 1
                return future
            future = GrammarFuture()
            if self._closed:
                future.set_exception(_stopped())
                return future
            self._futures[outputs] = future
            self._num_waiting[future] = 1
            self._forget_oldest()
            self._jobs.put((outputs, future))
            if self._thread is None:
                self._thread = _start(self._run, "grammars")
            return future

    def withdraw(self, outputs: StructuredOutputs, future: GrammarFuture) -> None:
        """Say that one of those who asked does not wait any more; once for each `compile`.

        When nobody waits, a compilation that has not begun is cancelled. One that has goes on: the
        grammar is kept for the next who asks.
        """
        with self._lock:
            if future not in self._num_waiting:
                # It was compiled meanwhile.
                return
            self._num_waiting[future] -= 1
            if self._num_waiting[future] > 0 or not future.cancel():
                return
            del self._num_waiting[future]
            if self._futures.get(outputs) is future:
                del self._futures[outputs]

    def close(self) -> None:
        """Fail what is not compiled yet and end the threads."""
        with self._lock:
            self._closed = True
            self._jobs.put(None)
            thread = self._thread
        self._trial.close()
        if thread is not None and thread is not threading.current_thread():
            thread.join(_CLOSE_TIMEOUT)

    def _forget_oldest(self) -> None:
        num_chars = sum(len(outputs.text) for outputs in self._futures)
        while len(self._futures) > self._max_grammars or num_chars > self._max_kept_chars:
            # Whoever waits for it has the future.
            outputs, _ = self._futures.popitem(last=False)
            num_chars -= len(outputs.text)

    def _run(self) -> None:
        while (job := self._jobs.get()) is not None:
            outputs, future = job
            if not future.set_running_or_notify_cancel():
                continue
            try:
                grammar = self._compile(outputs)
            except PagemeshError as error:
                with self._lock:
                    if self._futures.get(outputs) is future:
                        del self._futures[outputs]
                future.set_exception(error)
            else:
                future.set_result(grammar)
            with self._lock:
                self._num_waiting.pop(future, None)

    def _compile(self, outputs: StructuredOutputs) -> Grammar:
        if self._closed:
            raise _stopped()
        if self._backend is None:
            self._backend = _guarded(self._load_backend)
        backend = self._backend
        _guarded(lambda: self._trial.check(outputs))
        return _guarded(lambda: backend.compile(outputs))


def _stopped() -> UnavailableError:
    return UnavailableError("the engine is stopped")


def _guarded(call: Callable[[], _Result]) -> _Result:
    """The call's result; what is not a PagemeshError is a bug and becomes one."""
    try:
        return call()
    except PagemeshError:
        raise
    except BaseException as error:
        # Boundary to the library, whose panics are not Exceptions. They must not end the thread for all.
        log.exception("grammar could not be compiled")
        raise InternalError(f"a grammar could not be compiled: {type(error).__name__}") from error


def _start(target: Callable[[], None], name: str) -> threading.Thread:
    # Daemons: a compilation that does not end must not keep the process from exiting.
    thread = threading.Thread(target=target, name=name, daemon=True)
    with _starting:
        previous = threading.stack_size(_STACK_BYTES)
        try:
            thread.start()
        finally:
            threading.stack_size(previous)
    return thread
