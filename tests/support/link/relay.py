"""A TCP port that leads to another one; what goes through can be held up, swallowed and cut off."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Final, Self

_CHUNK_BYTES: Final = 256 * 1024


class Relay:
    """Carries bytes both ways between those who connect and `target`; belongs to one event loop."""

    def __init__(self, target: str | None = None) -> None:
        self.target = target
        """host:port, for connections from now on; None: whoever connects is turned away."""
        self.address = ""
        """host:port of the relay, once it is entered."""
        self._flows = asyncio.Event()
        self._flows.set()
        self._passes = asyncio.Event()
        self._passes.set()
        self._writers: set[asyncio.StreamWriter] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server | None = None

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._connect, "127.0.0.1", 0)
        self.address = f"127.0.0.1:{self._server.sockets[0].getsockname()[1]}"
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._server is not None
        self._server.close()
        self.target = None
        self.flow()
        self._passes.set()
        self.sever()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    @property
    def is_stalled(self) -> bool:
        """Whether nothing goes through."""
        return not self._flows.is_set()

    def stall(self) -> None:
        """Let nothing through until `flow`; what is sent meanwhile waits."""
        self._flows.clear()

    def flow(self) -> None:
        """Let everything through."""
        self._flows.set()

    def swallow(self, swallows: bool) -> None:
        """Take everything from both sides and pass nothing on, nor tell either side, not even of the other's end.

        When that ends, the connections of that time are broken: pieces of their streams are missing.
        """
        if swallows:
            self._passes.clear()
        elif not self._passes.is_set():
            self.sever()
            self._passes.set()

    def sever(self) -> None:
        """Break all connections at once, without a farewell."""
        for writer in self._writers:
            writer.transport.abort()

    async def _connect(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        self._writers.add(writer)
        try:
            with suppress(OSError):  # nobody is there: who connected sees a broken connection
                await self._carry(reader, writer)
        finally:
            self._writers.discard(writer)
            writer.transport.abort()

    async def _carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self.target is None:
            return
        host, _, port = self.target.rpartition(":")
        far_reader, far_writer = await asyncio.open_connection(host, int(port))
        self._writers.add(far_writer)
        try:
            async with asyncio.TaskGroup() as pumps:
                pumps.create_task(self._pump(reader, far_writer))
                pumps.create_task(self._pump(far_reader, writer))
        finally:
            self._writers.discard(far_writer)
            far_writer.transport.abort()

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Pass on what comes; when one side ends, break the other too."""
        with suppress(OSError):
            while data := await reader.read(_CHUNK_BYTES):
                await self._flows.wait()
                if self._passes.is_set():
                    writer.write(data)
                    await writer.drain()
        await self._passes.wait()
        writer.transport.abort()
