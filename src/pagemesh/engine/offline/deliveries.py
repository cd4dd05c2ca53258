"""Brings what the engine thread makes known to the call that waits for it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from queue import SimpleQueue

from pagemesh.engine.interface import RequestOutput, StepOutput

Inbox = SimpleQueue[RequestOutput]


class Deliveries:
    """The engine's listener. Calls of several threads each have an inbox of their own."""

    def __init__(self) -> None:
        self._inboxes: dict[str, Inbox] = {}

    def __call__(self, step: StepOutput) -> None:
        """Hand out one step's outputs; those of requests that nobody waits for are dropped."""
        for output in step.outputs:
            inbox = self._inboxes.get(output.request_id)
            if inbox is not None:
                inbox.put(output)

    @contextmanager
    def inbox(self, request_ids: Iterable[str]) -> Iterator[Inbox]:
        """Collect the outputs of some requests while the block runs; ids are used once."""
        inbox: Inbox = SimpleQueue()
        own = dict.fromkeys(request_ids, inbox)
        self._inboxes.update(own)
        try:
            yield inbox
        finally:
            for request_id in own:
                del self._inboxes[request_id]
