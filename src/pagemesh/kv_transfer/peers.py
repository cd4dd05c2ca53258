"""Channels to other workers, kept while they are used and a while longer."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Final

import grpc

from pagemesh.identity.roles import MeshRole
from pagemesh.rpc.channels import open_bulk_channel
from pagemesh.rpc.identity import Identity

IDLE_SECONDS: Final = 60.0
"""A channel that nobody used for so long belongs to a worker that left, or costs little to open anew."""


@dataclass(slots=True)
class _Peer:
    channel: grpc.Channel
    num_users: int = 0
    idle_since: float = 0.0


class PeerChannels:
    """One channel for each address, opened on first use. Belongs to one event loop.

    When the identity's certificate was replaced, whoever comes from then on gets another channel.
    """

    def __init__(self, identity: Identity | None = None) -> None:
        self._identity = identity
        self._peers: dict[tuple[str, int], _Peer] = {}

    @asynccontextmanager
    async def use(self, address: str) -> AsyncIterator[grpc.Channel]:
        """The channel to host:port; it stays open at least as long as the context."""
        loop = asyncio.get_running_loop()
        key = (address, self._identity.generation if self._identity else 0)
        if key not in self._peers:
            channel = open_bulk_channel(address, MeshRole.WORKER, self._identity)
            self._peers[key] = _Peer(channel)
        peer = self._peers[key]
        peer.num_users += 1
        try:
            self._close_idle(loop.time() - IDLE_SECONDS)
            yield peer.channel
        finally:
            peer.num_users -= 1
            peer.idle_since = loop.time()

    def close(self) -> None:
        """Close all channels; calls that still run on them fail. Idempotent."""
        while self._peers:
            _, peer = self._peers.popitem()
            peer.channel.close()

    def _close_idle(self, used_before: float) -> None:
        idle = [
            key
            for key, peer in self._peers.items()
            if peer.num_users == 0 and peer.idle_since < used_before
        ]
        for channel in [self._peers.pop(key).channel for key in idle]:
            channel.close()
