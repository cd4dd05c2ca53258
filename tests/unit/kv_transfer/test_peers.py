"""Channels to other workers."""

from __future__ import annotations

import pytest

from pagemesh.kv_transfer import peers
from pagemesh.kv_transfer.peers import PeerChannels


async def test_one_address_has_one_channel() -> None:
    channels = PeerChannels()
    async with (
        channels.use("127.0.0.1:1") as one,
        channels.use("127.0.0.1:1") as same,
        channels.use("127.0.0.1:2") as other,
    ):
        assert one is same
        assert one is not other
    async with channels.use("127.0.0.1:1") as later:
        assert later is one
    channels.close()


async def test_a_channel_that_nobody_uses_any_more_is_closed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    channels = PeerChannels()
    async with channels.use("127.0.0.1:1") as left:
        pass
    async with channels.use("127.0.0.1:2") as used:
        monkeypatch.setattr(peers, "IDLE_SECONDS", -1.0)
        async with channels.use("127.0.0.1:3"):
            pass
        async with channels.use("127.0.0.1:2") as still:
            assert still is used
    async with channels.use("127.0.0.1:1") as new:
        assert new is not left
    channels.close()


async def test_closing_may_be_repeated() -> None:
    channels = PeerChannels()
    async with channels.use("127.0.0.1:1"):
        pass
    channels.close()
    channels.close()
