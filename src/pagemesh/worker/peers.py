"""Channels to other workers, kept while they are used and a while longer."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Final

import grpc

from pagemesh.rpc.channels import open_bulk_channel

IDLE_SECONDS: Final = 60.0
"""A channel that nobody used for so long belongs to a worker that left, or costs little to open anew."""


@dataclass(slots=True)
class _Peer:
    channel: grpc.Channel
    num_users: int = 0
    idle_since: float = 0.0


class PeerChannels:
    """One channel for each address, opened on first use. Belongs to one event loop."""

    def __init__(self) -> None:
        self._peers: dict[str, _Peer] = {}

    @asynccontextmanager
    async def use(self, address: str) -> AsyncIterator[grpc.Channel]:
        """The channel to host:port; it stays open at least as long as the context."""
        loop = asyncio.get_running_loop()
        if address not in self._peers:
            self._peers[address] = _Peer(open_bulk_channel(address))
        peer = self._peers[address]
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
            address
            for address, peer in self._peers.items()
            if peer.num_users == 0 and peer.idle_since < used_before
        ]
        for channel in [self._peers.pop(address).channel for address in idle]:
            channel.close()
