"""Finds the other servers that follow the same kvstores: for a router, the other routers."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from typing import Final, NamedTuple

import grpc
import structlog

from pagemesh.identity.roles import MeshRole
from pagemesh.rpc.channels import open_channel
from pagemesh.rpc.identity import Identity
from pagemesh.v1 import kvstore_pb2, kvstore_pb2_grpc

_log = structlog.get_logger(__name__)

_TIMEOUT_S: Final = 1.0


class Found(NamedTuple):
    """Servers that watch, by the addresses that the kvstores have of them."""

    own_address: str
    """The one that looked."""
    others: tuple[str, ...]


class Fellows:
    """Asks every replica, as each knows only who watches it. What one said holds while it does not answer.

    Belongs to one event loop.
    """

    def __init__(
        self, kvstores: Sequence[str], watcher: str, identity: Identity | None = None
    ) -> None:
        """`watcher` is the host:port by which the server that looks follows a kvstore itself."""
        self._watcher = watcher
        self._identity = identity
        self._known = {kvstore: Found(watcher, ()) for kvstore in kvstores}

    async def find(self) -> Found:
        """Those of now, as far as replicas answer within a second."""
        with suppress(TimeoutError):
            async with asyncio.timeout(2 * _TIMEOUT_S):
                await asyncio.gather(*map(self._ask, self._known))
        watching = [found.own_address for found in self._known.values() if found.others]
        addresses = sorted({each for found in self._known.values() for each in found.others})
        # It is known by the address by which one of the replicas lists it.
        own = next((each for each in watching if each in addresses), self._watcher)
        return Found(own, tuple(each for each in addresses if each != own))

    async def _ask(self, kvstore: str) -> None:
        request = kvstore_pb2.ListWatchersRequest(watcher=self._watcher)
        try:
            async with open_channel(kvstore, MeshRole.KVSTORE, self._identity) as channel:
                stub: kvstore_pb2_grpc.KvStoreAsyncStub = kvstore_pb2_grpc.KvStoreStub(channel)
                said = await stub.ListWatchers(request, timeout=_TIMEOUT_S)
        except grpc.aio.AioRpcError as error:
            _log.debug("watchers_unknown", kvstore=kvstore, code=error.code().name)
            return
        self._known[kvstore] = Found(said.own_address, tuple(said.addresses))
