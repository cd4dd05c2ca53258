"""Brings what the engine thread makes known to the call that waits for it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from queue import Empty, SimpleQueue
from typing import Final

from pagemesh.engine.interface import RequestOutput, StepOutput
from pagemesh.errors import PagemeshError

CHECK_INTERVAL: Final = 1.0
"""Seconds after which someone who waits asks whether the engine is still there."""


class Inbox:
    """Outputs of one call's requests, in the order in which the engine made them known."""

    def __init__(self, check_engine: Callable[[], None], check_interval: float) -> None:
        self._outputs: SimpleQueue[RequestOutput] = SimpleQueue()
        self._check_engine = check_engine
        self._check_interval = check_interval

    def put(self, output: RequestOutput) -> None:
        """Add an output; any thread."""
        self._outputs.put(output)

    def get(self) -> RequestOutput:
        """Wait for the next output, for as long as the engine can give one.

        Raises what `check_engine` raises when it cannot any more.
        """
        while True:
            try:
                return self._outputs.get(timeout=self._check_interval)
            except Empty:
                pass
            try:
                self._check_engine()
            except PagemeshError:
                # What it said before it ended counts.
                if self._outputs.empty():
                    raise


class Deliveries:
    """The engine's listener. Calls of several threads each have an inbox of their own."""

    def __init__(self, check_interval: float = CHECK_INTERVAL) -> None:
        self._check_interval = check_interval
        self._inboxes: dict[str, Inbox] = {}

    def __call__(self, step: StepOutput) -> None:
        """Hand out one step's outputs; those of requests that nobody waits for are dropped."""
        for output in step.outputs:
            inbox = self._inboxes.get(output.request_id)
            if inbox is not None:
                inbox.put(output)

    @contextmanager
    def inbox(
        self, request_ids: Iterable[str], check_engine: Callable[[], None]
    ) -> Iterator[Inbox]:
        """Collect the outputs of some requests while the block runs; ids are used once.

        `check_engine` raises a PagemeshError when nothing more can come.
        """
        inbox = Inbox(check_engine, self._check_interval)
        own = dict.fromkeys(request_ids, inbox)
        self._inboxes.update(own)
        try:
            yield inbox
        finally:
            for request_id in own:
                del self._inboxes[request_id]
