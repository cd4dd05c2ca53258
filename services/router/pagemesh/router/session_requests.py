"""What waits to be sent to one worker: submissions in their order, and cancellations in front of them."""

from __future__ import annotations

import asyncio
from collections import deque

from pagemesh.v1 import decode_pb2


class SessionRequests:
    """A queue in which nobody's cancellation waits behind others' prompts. Belongs to one event loop."""

    def __init__(self) -> None:
        # By handle. Python's dictionaries keep the order.
        self._submits: dict[int, decode_pb2.Submit] = {}
        self._cancelled: deque[int] = deque()
        self._news = asyncio.Event()

    def submit(self, submit: decode_pb2.Submit) -> None:
        """Have it sent behind all that waits."""
        self._submits[submit.handle] = submit
        self._news.set()

    def cancel(self, handle: int) -> None:
        """Have the worker end what was submitted; what was not sent yet never is."""
        if self._submits.pop(handle, None) is None:
            self._cancelled.append(handle)
            self._news.set()

    async def get(self) -> decode_pb2.SessionRequest:
        """The next message, when there is one."""
        while True:
            if self._cancelled:
                handle = self._cancelled.popleft()
                return decode_pb2.SessionRequest(cancel=decode_pb2.Cancel(handle=handle))
            if self._submits:
                return decode_pb2.SessionRequest(
                    submit=self._submits.pop(next(iter(self._submits)))
                )
            self._news.clear()
            await self._news.wait()
