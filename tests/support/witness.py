"""Who stands in a worker's KV streams and looks on."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from tests.support.kv_messages import KvMessage
from tests.support.saboteur import Chunks


class Witness:
    """Notes the messages of all streams, and passes on what `change` makes of each."""

    def __init__(self, change: Callable[[KvMessage], None] | None = None) -> None:
        self.streams: list[list[KvMessage]] = []
        self._change = change

    async def __call__(self, chunks: Chunks) -> Chunks:
        self.streams.append([])
        async for chunk in chunks:
            message = KvMessage.of_frame(chunk)
            if self._change is not None:
                await asyncio.to_thread(self._change, message)
            self.streams[-1].append(message)
            yield message.frame()

    def payloads(self, stream: int) -> int:
        return sum(len(message.payload) for message in self.streams[stream])
