"""A TCP port that leads to another one, and that can be cut and stalled."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Self


class Link:
    """Carries bytes both ways between those who connect and `target`; belongs to one event loop."""

    def __init__(self) -> None:
        self.target: str | None = None
        """host:port; None: whoever connects is turned away."""
        self.address = ""
        self._flows = asyncio.Event()
        self._flows.set()
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
        self.cut()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def cut(self) -> None:
        """Break all connections."""
        for writer in self._writers:
            writer.transport.abort()

    @property
    def is_stalled(self) -> bool:
        return not self._flows.is_set()

    def stall(self) -> None:
        """Let nothing through until `flow`."""
        self._flows.clear()

    def flow(self) -> None:
        """Let everything through."""
        self._flows.set()

    async def _connect(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        self._writers.add(writer)
        try:
            with suppress(OSError):
                await self._carry(reader, writer)
        finally:
            self._writers.discard(writer)
            writer.transport.abort()

    async def _carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self.target is None:
            return
        host, _, port = self.target.rpartition(":")
        their_reader, their_writer = await asyncio.open_connection(host, int(port))
        self._writers.add(their_writer)
        try:
            await asyncio.wait(
                [
                    asyncio.ensure_future(self._pump(reader, their_writer)),
                    asyncio.ensure_future(self._pump(their_reader, writer)),
                ],
            )
        finally:
            self._writers.discard(their_writer)
            their_writer.transport.abort()

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Until either side is gone; the other one is then cut as well."""
        try:
            while data := await reader.read(65536):
                await self._flows.wait()
                writer.write(data)
                await writer.drain()
        except OSError:
            pass
        finally:
            writer.transport.abort()
