"""A client of HTTP/1.1 that leaves by closing its connection."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Mapping
from types import TracebackType
from typing import Self


class Client:
    """A connection of its own with one request on it; `async with` sends it, and leaves in the end."""

    def __init__(self, port: int, path: str, body: Mapping[str, object]) -> None:
        self._port = port
        content = json.dumps(body).encode()
        head = (
            f"POST {path} HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
            f"content-length: {len(content)}\r\n\r\n"
        )
        self._request = head.encode() + content
        self._writer: asyncio.StreamWriter | None = None

    async def __aenter__(self) -> Self:
        self._reader, self._writer = await asyncio.open_connection("127.0.0.1", self._port)
        self._writer.write(self._request)
        await self._writer.drain()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.leave()

    async def read_until(self, text: str, count: int = 1) -> float:
        """Read on until a text has come so many times; when that was."""
        received = b""
        async with asyncio.timeout(60):
            while received.count(text.encode()) < count:
                piece = await self._reader.read(65536)
                if not piece:
                    raise RuntimeError(f"the answer ended without {text!r}: {received!r}")
                received += piece
        return time.perf_counter()

    def leave(self) -> float:
        """Close the connection, once; when that was."""
        now = time.perf_counter()
        if self._writer is not None:
            self._writer.transport.abort()
            self._writer = None
        return now
