"""What waits to be told to one client: a client that is slower than its workers gets more at a time."""

from __future__ import annotations

import asyncio
from collections import deque

from pagemesh.errors import PagemeshError
from pagemesh.router.dispatch.turn import Turn
from pagemesh.router.generation.request import Idle
from pagemesh.router.read_ahead import can_follow
from pagemesh.v1 import decode_pb2

Event = tuple[int, decode_pb2.RequestOutput] | Idle | Turn | PagemeshError
"""Index of a choice and what its worker sent; silence; that the turn has come; or why the request as a whole ends."""


class Events:
    """A queue in which outputs of one choice become one while they wait. Belongs to the running event loop.

    vLLM's output collector is the same idea: under load, the cost of a message is shared by its tokens.
    """

    def __init__(self, interval: int = 1) -> None:
        """Outputs wait until their choice has `interval` tokens; its first ones and its last ones do not."""
        self._interval = interval
        # At most one entry per choice but for errors, silence and the turn, all of which are rare.
        self._waiting: deque[Event] = deque()
        # By choice, what still grows; of those in `_held`, nobody is told yet.
        self._outputs: dict[int, decode_pb2.RequestOutput] = {}
        self._held: set[int] = set()
        self._begun: set[int] = set()
        self._loop = asyncio.get_running_loop()
        self._woken: asyncio.Future[None] | None = None

    def put(self, event: Idle | Turn | PagemeshError) -> None:
        """Add behind what waits, of which an error leaves nothing untold."""
        if isinstance(event, PagemeshError):
            for index in tuple(self._held):
                self._release(index)
        self._waiting.append(event)
        self._wake()

    def put_output(self, index: int, output: decode_pb2.RequestOutput) -> None:
        """Add what a choice's worker sent, which is kept and may be changed."""
        growing = self._outputs.get(index)
        if growing is not None and can_follow(output):
            growing.MergeFrom(output)
            if index not in self._held:
                return
        else:
            if index in self._held:
                self._release(index)
            self._outputs[index] = growing = output
        if (
            len(growing.token_ids) >= self._interval
            or growing.finish_reason
            or index not in self._begun
        ):
            self._begun.add(index)
            self._release(index)
        else:
            self._held.add(index)

    async def get(self) -> Event:
        """The next one, when there is one."""
        while not self._waiting:
            # An asyncio.Event would ask for the running loop, and thus the system for the process, each time.
            self._woken = self._loop.create_future()
            await self._woken
        event = self._waiting.popleft()
        if isinstance(event, tuple) and self._outputs.get(event[0]) is event[1]:
            del self._outputs[event[0]]
        return event

    def _release(self, index: int) -> None:
        self._held.discard(index)
        self._waiting.append((index, self._outputs[index]))
        self._wake()

    def _wake(self) -> None:
        if self._woken is not None and not self._woken.done():
            self._woken.set_result(None)
