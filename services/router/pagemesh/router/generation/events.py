"""What waits to be told to one client: a client that is slower than its workers gets more at a time."""

from __future__ import annotations

import asyncio
from collections import deque

from pagemesh.errors import PagemeshError
from pagemesh.router.generation.request import Idle
from pagemesh.router.read_ahead import can_follow
from pagemesh.v1 import decode_pb2

Event = tuple[int, decode_pb2.RequestOutput] | Idle | PagemeshError
"""Index of a choice and what its worker sent; silence; or why the request as a whole ends."""


class Events:
    """A queue in which outputs of one choice become one while they wait. Belongs to one event loop.

    vLLM's output collector is the same idea: under load, the cost of a message is shared by its tokens.
    """

    def __init__(self) -> None:
        # At most one entry per choice but for errors and silence, both of which are rare.
        self._waiting: deque[Event] = deque()
        self._outputs: dict[int, decode_pb2.RequestOutput] = {}
        self._is_there = asyncio.Event()

    def put(self, event: Idle | PagemeshError) -> None:
        """Add behind what waits."""
        self._waiting.append(event)
        self._is_there.set()

    def put_output(self, index: int, output: decode_pb2.RequestOutput) -> None:
        """Add what a choice's worker sent, which is kept and may be changed."""
        waiting = self._outputs.get(index)
        if waiting is not None and can_follow(output):
            waiting.MergeFrom(output)
            return
        self._outputs[index] = output
        self._waiting.append((index, output))
        self._is_there.set()

    async def get(self) -> Event:
        """The next one, when there is one."""
        while not self._waiting:
            self._is_there.clear()
            await self._is_there.wait()
        event = self._waiting.popleft()
        if isinstance(event, tuple) and self._outputs.get(event[0]) is event[1]:
            del self._outputs[event[0]]
        return event
