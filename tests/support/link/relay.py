"""A TCP relay that can swallow everything, as a network that lost its way does, or break connections."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Final

_CHUNK_BYTES: Final = 256 * 1024


class Relay:
    """Forwards connections on a loopback port to a target. Belongs to one event loop."""

    def __init__(self, target: str) -> None:
        host, _, port = target.rpartition(":")
        self._host, self._port = host, int(port)
        self._swallows = False
        self._server: asyncio.Server | None = None
        self._writers: set[asyncio.StreamWriter] = set()

    async def start(self) -> str:
        """Listen; gives the address."""
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        host, port = self._server.sockets[0].getsockname()[:2]
        return f"{host}:{port}"

    def swallow(self, swallows: bool) -> None:
        """Take everything from both sides and pass nothing on, nor tell either side.

        When that ends, the connections of that time are broken: pieces of their streams are missing.
        """
        if self._swallows and not swallows:
            self.sever()
        self._swallows = swallows

    def sever(self) -> None:
        """Break all connections at once, without a farewell."""
        for writer in list(self._writers):
            writer.transport.abort()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.add(writer)
        try:
            far_reader, far_writer = await asyncio.open_connection(self._host, self._port)
        except OSError:  # nobody is there: the caller sees a broken connection
            self._writers.discard(writer)
            writer.transport.abort()
            return
        self._writers.add(far_writer)
        try:
            async with asyncio.TaskGroup() as pumps:
                pumps.create_task(self._pump(reader, far_writer))
                pumps.create_task(self._pump(far_reader, writer))
        finally:
            for each in (writer, far_writer):
                self._writers.discard(each)
                each.transport.abort()

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Pass on what comes; when one side ends, break the other too."""
        with contextlib.suppress(OSError):
            while data := await reader.read(_CHUNK_BYTES):
                if not self._swallows:
                    writer.write(data)
                    await writer.drain()
        writer.transport.abort()
