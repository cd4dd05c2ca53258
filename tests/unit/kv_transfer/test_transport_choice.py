"""Which transport KV takes is decided by what both ends can do."""

from __future__ import annotations

import os
from collections.abc import Sequence

import numpy as np
import pytest
from structlog.testing import capture_logs

from pagemesh.core.kv import KvAccess, KvLayout
from pagemesh.errors import UnavailableError
from pagemesh.kv_memory.memory import KvMemory, open_memory
from pagemesh.kv_memory.staged import DeviceMemoryName, Piece, StagedKv
from pagemesh.kv_transfer import transport_choice
from pagemesh.kv_transfer.transport_choice import KvTransports
from pagemesh.kv_transfer.transports import (
    NamedBlocksReceiving,
    NamedBlocksSending,
    PayloadReceiving,
    PayloadSending,
    device_memory_name,
)
from pagemesh.rpc.channels import host_identity
from pagemesh.v1 import kv_transfer_pb2, types_pb2

LAYOUT = KvLayout.uniform(block_size=4, num_layers=3, num_kv_heads=1, head_dim=2, dtype="float32")
NAME = DeviceMemoryName(123, bytes(64), 512, 10)
WHY = "a sender's memory is out of reach: no peer access"
PEER = types_pb2.PeerWorker(worker_id="prefill-0", epoch=7)


class NoStager:
    """Of a device that nobody asks."""

    def stage_out(self, slot: int, piece: Piece) -> None:
        raise AssertionError

    def stage_in(self, slot: int, piece: Piece) -> None:
        raise AssertionError

    def sum(self, slot: int, piece: Piece) -> int:
        raise AssertionError

    def copy(
        self, slot: int, peer: DeviceMemoryName, source_ids: Sequence[int], piece: Piece
    ) -> int:
        raise AssertionError


def on_host(*, shared: bool = True) -> KvMemory:
    if not shared:
        return KvMemory(LAYOUT, 10)
    descriptor = open_memory()
    memory = KvMemory(LAYOUT, 10, descriptor)
    os.close(descriptor)
    return memory


def on_device(name: DeviceMemoryName | None = None) -> StagedKv:
    return StagedKv(LAYOUT, 10, np.zeros((2, 1024), np.uint8), NoStager(), name)


def sharing(kv: KvAccess) -> KvTransports:
    return KvTransports(kv, LAYOUT, share=True)


def header_of(transports: KvTransports, *, on_device: bool = False) -> kv_transfer_pb2.KvHeader:
    header = kv_transfer_pb2.KvHeader()
    identity = host_identity(on_device=on_device)
    assert identity is not None
    transports.sending_to(identity).announce(header)
    return header


async def test_memory_of_the_host_is_named_to_callers_of_this_host_alone() -> None:
    transports = sharing(on_host())
    assert transports.identity_for(PEER) == host_identity()
    assert header_of(transports).HasField("memory")
    identity = host_identity()
    assert identity is not None
    assert isinstance(transports.sending_to(identity), NamedBlocksSending)
    identity.boot_id = "another machine's"
    assert isinstance(transports.sending_to(identity), PayloadSending)
    assert isinstance(transports.sending_to(kv_transfer_pb2.HostIdentity()), PayloadSending)


@pytest.mark.parametrize(
    ("kv", "share"),
    [(on_device(), True), (on_host(shared=False), True), (on_host(), False)],
    ids=["on a device", "of its own", "not wanted"],
)
async def test_other_kv_travels_in_messages_both_ways(kv: KvAccess, share: bool) -> None:
    transports = KvTransports(kv, LAYOUT, share=share)
    assert transports.identity_for(PEER) is None
    assert not header_of(transports).HasField("memory")
    with transports.stream(PEER) as choose_transport:
        assert isinstance(choose_transport(kv_transfer_pb2.KvHeader()), PayloadReceiving)


async def test_a_devices_memory_is_named_to_callers_with_devices_alone() -> None:
    transports = sharing(on_device(NAME))
    identity, elsewhere = host_identity(on_device=True), host_identity()
    assert transports.identity_for(PEER) == identity != elsewhere
    assert elsewhere is not None
    assert isinstance(transports.sending_to(elsewhere), PayloadSending)
    header = header_of(transports, on_device=True)
    assert device_memory_name(header) == NAME
    with transports.stream(PEER) as choose_transport:
        assert isinstance(choose_transport(header), NamedBlocksReceiving)
        with pytest.raises(UnavailableError, match="a memory is not like this worker's own"):
            choose_transport(header_of(sharing(on_host())))


async def test_the_header_chooses_the_transport() -> None:
    sender, receiver = sharing(on_host()), sharing(on_host())
    header = header_of(sender)
    with receiver.stream(PEER) as choose_transport:
        assert isinstance(choose_transport(header), NamedBlocksReceiving)
    with sharing(on_device()).stream(PEER) as choose_transport:
        with pytest.raises(UnavailableError) as caught:
            choose_transport(header)
        assert caught.value.reason == "KV_MEMORY_UNREACHABLE"
    receiver.close()


@pytest.mark.parametrize("kv", [on_host(), on_device(NAME)], ids=["on the host", "on a device"])
async def test_memory_that_was_not_asked_for_is_not_opened(kv: KvAccess) -> None:
    header = header_of(sharing(kv), on_device=isinstance(kv, StagedKv))
    assert header.WhichOneof("place") is not None
    unwilling, disappointed = KvTransports(kv, LAYOUT, share=False), sharing(kv)
    disappointed.note_unreachable(PEER, WHY)
    for transports in (unwilling, disappointed):
        assert transports.identity_for(PEER) is None
        with transports.stream(PEER) as choose_transport:
            with pytest.raises(UnavailableError, match="has not said") as caught:
                choose_transport(header)
            assert caught.value.reason == "KV_MEMORY_UNREACHABLE"
        transports.close()


async def test_the_log_says_why_memory_is_out_of_reach() -> None:
    with capture_logs() as logs:
        sharing(on_host()).note_unreachable(PEER, WHY)
    (entry,) = logs
    assert (entry["peer"], entry["error"]) == ("prefill-0", WHY)


def worker_ids(transports: KvTransports, peers: Sequence[types_pb2.PeerWorker]) -> list[str]:
    return [peer.worker_id for peer in peers if transports.identity_for(peer) is None]


async def test_an_incarnation_out_of_reach_is_remembered_and_no_other(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(transport_choice, "_MAX_UNREACHABLE", 2)
    transports = sharing(on_host())
    peers = [types_pb2.PeerWorker(worker_id=name, epoch=1) for name in "abc"]
    transports.note_unreachable(peers[0], WHY)
    transports.note_unreachable(peers[1], WHY)
    assert worker_ids(transports, peers) == ["a", "b"]
    restarted = types_pb2.PeerWorker(worker_id="a", epoch=2)
    assert transports.identity_for(restarted) == host_identity()
    transports.note_unreachable(peers[2], WHY)
    assert worker_ids(transports, peers) == ["b", "c"]
