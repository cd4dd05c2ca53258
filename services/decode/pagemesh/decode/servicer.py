"""Decode.Session: a session for each stream, closed with it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from typing import Any, Final

import grpc

from pagemesh.decode.remote_prefill import RemotePrefiller
from pagemesh.decode.session import Session
from pagemesh.v1 import decode_pb2, decode_pb2_grpc
from pagemesh.worker.worker import Worker

MAX_HANDOVER_S: Final = 5.0
"""End of the grace period, or half of a short one, in which requests go on elsewhere that have not finished."""


class DecodeServicer(decode_pb2_grpc.DecodeServicer):
    """Serves sessions; knows them all, so that they can drain when the worker stops."""

    def __init__(self, worker: Worker, prefiller: RemotePrefiller, grace_period: float) -> None:
        """`grace_period` is the seconds that `drain` has."""
        self._worker = worker
        self._prefiller = prefiller
        self._patience = grace_period - min(MAX_HANDOVER_S, grace_period / 2)
        self._sessions: set[Session] = set()
        self._draining = False
        self._over = asyncio.Event()
        self._over.set()

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
        self._over.clear()
        reader = asyncio.create_task(session.read(request_iterator), name="session-reader")
        try:
            async for response in session.responses():
                yield response
        finally:
            session.close()
            self._sessions.discard(session)
            if not self._sessions:
                self._over.set()
            reader.cancel()
            await asyncio.gather(reader, return_exceptions=True)

    async def drain(self) -> None:
        """Wait until all sessions are over: their requests have finished, or have gone on elsewhere.

        Towards the end of the grace period those that are left are handed over. Whoever takes them fetches
        their KV from here, until all have it. The caller gives up when the grace period is over.
        """
        self._draining = True
        for session in self._sessions:
            session.drain()
        try:
            async with asyncio.timeout(self._patience):
                await self._over.wait()
        except TimeoutError:
            for session in self._sessions:
                session.hand_over()
            await self._over.wait()
