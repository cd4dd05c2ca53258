"""Decode.Session: a session for each stream, closed with it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from typing import Any

import grpc

from pagemesh.decode.remote_prefill import RemotePrefiller
from pagemesh.decode.session import Session
from pagemesh.v1 import decode_pb2, decode_pb2_grpc
from pagemesh.worker.worker import Worker


class DecodeServicer(decode_pb2_grpc.DecodeServicer):
    """Serves sessions; knows them all, so that they can drain when the worker stops."""

    def __init__(self, worker: Worker, prefiller: RemotePrefiller) -> None:
        self._worker = worker
        self._prefiller = prefiller
        self._sessions: set[Session] = set()
        self._draining = False

    async def Session(  # noqa: N802  # the name of the RPC
        self,
        request_iterator: AsyncIterator[decode_pb2.SessionRequest],
        context: grpc.aio.ServicerContext[Any, Any],
    ) -> AsyncGenerator[decode_pb2.SessionResponse]:
        """Run what the router submits; when the stream ends, so does everything that it asked for.

        Has no deadline: it lasts as long as the router and the worker do, and keepalive tells both
        when the other one is gone.
        """
        session = Session(self._worker, self._prefiller, draining=self._draining)
        self._sessions.add(session)
        reader = asyncio.create_task(session.read(request_iterator), name="session-reader")
        try:
            async for response in session.responses():
                yield response
        finally:
            session.close()
            self._sessions.discard(session)
            reader.cancel()
            await asyncio.gather(reader, return_exceptions=True)

    async def drain(self) -> None:
        """Have all sessions end once their present requests have."""
        self._draining = True
        for session in self._sessions:
            session.drain()
