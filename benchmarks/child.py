"""A process of a benchmark's own, which is asked and answers through a pipe."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Iterator
from contextlib import suppress
from multiprocessing.connection import Connection
from types import TracebackType
from typing import Any, Self

_ANSWER_S = 60.0
_END_S = 10.0


class Child:
    """Started by the constructor, ended by `close`, or on exit of the context.

    `body(parent, *arguments)` runs in it, and returns when the parent closes the pipe, as `questions` does.
    """

    def __init__(self, name: str, body: Callable[..., None], *arguments: object) -> None:
        """`name` is for error messages; body and arguments are pickled."""
        self._name = name
        spawn = multiprocessing.get_context("spawn")
        self._connection, theirs = spawn.Pipe()
        self._process = spawn.Process(target=body, args=(theirs, *arguments), daemon=True)
        self._process.start()
        theirs.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    @property
    def pid(self) -> int:
        """Process id."""
        assert self._process.pid is not None
        return self._process.pid

    def tell(self, question: object = None) -> None:
        """Ask without waiting for the answer; RuntimeError when the process is gone."""
        try:
            self._connection.send(question)
        except ConnectionError:
            raise self._ended() from None

    def answer(self) -> Any:
        """The next thing that it says; RuntimeError when it ended, or says nothing in time."""
        if not self._connection.poll(_ANSWER_S):
            raise RuntimeError(f"{self._name} said nothing for {_ANSWER_S:g} s")
        try:
            return self._connection.recv()
        except (EOFError, ConnectionError):
            raise self._ended() from None

    def ask(self, question: object = None) -> Any:
        """The answer to a question; RuntimeError as for `answer`."""
        self.tell(question)
        return self.answer()

    def forget(self) -> None:
        """Throw away what it has said; RuntimeError when it ended."""
        while self._connection.poll():
            self.answer()

    def kill(self) -> None:
        """End it at once, when it does not listen to its pipe."""
        self._process.kill()

    def close(self) -> None:
        """End it, which kills it when it does not end by itself. Idempotent."""
        self._connection.close()
        self._process.join(_END_S)
        self._process.kill()
        self._process.join()

    def _ended(self) -> RuntimeError:
        return RuntimeError(f"{self._name} ended; what it said is above")


def questions(parent: Connection) -> Iterator[Any]:
    """In a child: what it is asked, until its parent closes the pipe, or is gone."""
    # A reset, when something that the child said was never read.
    with suppress(EOFError, ConnectionResetError):
        while True:
            yield parent.recv()
