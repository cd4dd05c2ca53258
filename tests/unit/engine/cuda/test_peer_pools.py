"""Another engine's pool is opened once, stays open while it is read, and no longer than its owner lives."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from pagemesh.engine.cuda import peer_pools
from pagemesh.engine.cuda.kv_pool import KvPool
from pagemesh.engine.cuda.kv_stager import KvStager
from pagemesh.engine.cuda.peer_pools import PeerPools, name_pool
from pagemesh.errors import DeviceLostError, KvIntegrityError, UnavailableError
from pagemesh.kernels.block_copy import checksum_of
from pagemesh.kv_memory.staged import DeviceMemoryName, StagedKv
from tests.support.host_accelerator import HostAccelerator
from tests.support.host_device import Device
from tests.support.host_sharing import HostSharing
from tests.support.kv_bytes import read_kv
from tests.support.mappings import num_descriptors
from tests.unit.engine.cuda.test_kv_pool import LAYOUT, make_pool


@pytest.fixture
def sharing() -> HostSharing:
    return HostSharing()


@pytest.fixture
def peers(sharing: HostSharing) -> Iterator[PeerPools]:
    peers = PeerPools(LAYOUT, sharing)
    yield peers
    peers.close()
    peers.close()
    assert sharing.opened == []
    assert watchers() == []


def share(pool: KvPool) -> DeviceMemoryName:
    name = name_pool(pool, HostSharing())
    assert name is not None
    return name


@contextmanager
def owner_of(name: DeviceMemoryName) -> Iterator[tuple[DeviceMemoryName, subprocess.Popen[bytes]]]:
    """Another process that has the memory too, until its input ends."""
    process = subprocess.Popen(
        [sys.executable, "-S", "-c", "import sys; print(flush=True); sys.stdin.read()"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        pass_fds=[int(name.handle)],
    )
    with process:
        assert process.stdout is not None
        process.stdout.readline()
        yield name._replace(process_id=process.pid), process


def watchers() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "kv-peer"]


def end(process: subprocess.Popen[bytes]) -> None:
    """Return when whoever watches the process has noticed its end."""
    (watcher,) = watchers()
    process.kill()
    process.wait(10)
    watcher.join(10)
    assert not watcher.is_alive()


def staged(pool: KvPool, peers: PeerPools | None) -> StagedKv:
    accelerator = HostAccelerator()
    slots = torch.zeros(2, 1 << 16, dtype=torch.uint8)
    accelerator.adopt(slots)
    stager = KvStager(pool, accelerator, slots, peers)
    return StagedKv(pool.layout, pool.num_blocks, slots.numpy(), stager)


def test_a_pool_is_opened_once_and_seen_as_it_is(peers: PeerPools, sharing: HostSharing) -> None:
    pool = make_pool()
    name = share(pool)
    with peers.use(name) as planes, peers.use(name) as again:
        assert again is planes
        assert torch.equal(planes, pool.planes)
        pool.layers[2].zero_()
        assert torch.equal(planes, pool.planes)
    with peers.use(name):
        pass
    assert sharing.num_opened == 1


def test_a_pool_is_closed_when_its_owner_ends(peers: PeerPools, sharing: HostSharing) -> None:
    pool = make_pool()
    before = num_descriptors("pipe:")
    with owner_of(share(pool)) as (name, process):
        with peers.use(name) as planes:
            assert torch.equal(planes, pool.planes)
        del planes
        assert len(sharing.opened) == 1
        end(process)
        assert sharing.opened == []
        with (
            pytest.raises(UnavailableError, match="cannot be watched") as caught,
            peers.use(name),
        ):
            raise AssertionError
        assert caught.value.reason == "KV_MEMORY_UNREACHABLE"
    assert num_descriptors("pipe:") == before


def test_a_pool_in_use_is_closed_behind_its_last_use(
    peers: PeerPools, sharing: HostSharing
) -> None:
    pool = make_pool()
    with owner_of(share(pool)) as (name, process), peers.use(name):
        with peers.use(name):
            end(process)
        assert len(sharing.opened) == 1
    assert sharing.opened == []


def test_nothing_is_opened_of_a_process_that_has_ended_and_is_not_reaped(
    peers: PeerPools, sharing: HostSharing
) -> None:
    pool = make_pool()
    before = num_descriptors("pipe:")
    with owner_of(share(pool)) as (name, process):
        process.kill()
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        with pytest.raises(UnavailableError, match="has ended") as caught, peers.use(name):
            raise AssertionError
        assert caught.value.reason == "KV_MEMORY_UNREACHABLE"
    assert sharing.num_opened == 0
    assert num_descriptors("pipe:") == before


def test_nobody_begins_to_read_behind_the_owners_end_before_it_is_noticed(
    peers: PeerPools, monkeypatch: pytest.MonkeyPatch
) -> None:
    notices, watch = threading.Event(), PeerPools._watch

    def watch_late(peers: PeerPools, *arguments: Any) -> None:
        notices.wait(10)
        watch(peers, *arguments)

    monkeypatch.setattr(PeerPools, "_watch", watch_late)
    pool = make_pool()
    with owner_of(share(pool)) as (name, process):
        with peers.use(name):
            pass
        process.kill()
        process.wait(10)
        with pytest.raises(UnavailableError, match="has ended"), peers.use(name):
            raise AssertionError
        notices.set()


def test_a_pool_that_a_device_may_still_read_is_not_closed(sharing: HostSharing) -> None:
    peers, pool = PeerPools(LAYOUT, sharing), make_pool()
    with owner_of(share(pool)) as (name, process):
        with pytest.raises(DeviceLostError), peers.use(name):
            end(process)
            raise DeviceLostError("the copy has not finished")
        assert len(sharing.opened) == 1
        peers.close()
        assert len(sharing.opened) == 1


def test_a_process_has_one_pool(peers: PeerPools, sharing: HostSharing) -> None:
    pool, another = make_pool(), make_pool()
    name = share(pool)
    with peers.use(name):
        pass
    for other in (name._replace(num_blocks=8), name._replace(offset=8), share(another)):
        with pytest.raises(UnavailableError, match="named other memory before"), peers.use(other):
            raise AssertionError
    assert sharing.num_opened == 1
    assert len(watchers()) == 1


class PausingOs:
    """The system's functions, but whoever watches an owner pauses when it has told of its end."""

    def __init__(self, peers: PeerPools) -> None:
        self.paused, self.goes_on = threading.Event(), threading.Event()
        self._peers = peers

    def __getattr__(self, name: str) -> Any:
        return getattr(os, name)

    def close(self, descriptor: int) -> None:
        if threading.current_thread().name == "kv-peer" and not self._peers._lock.locked():
            self.paused.set()
            self.goes_on.wait(10)
        os.close(descriptor)


def test_closing_waits_for_those_who_are_about_to_end(
    peers: PeerPools, monkeypatch: pytest.MonkeyPatch
) -> None:
    system = PausingOs(peers)
    monkeypatch.setattr(peer_pools, "os", system)
    pool = make_pool()
    with owner_of(share(pool)) as (name, process):
        with peers.use(name):
            pass
        process.kill()
        assert system.paused.wait(10)
        closing = threading.Thread(target=peers.close)
        closing.start()
        closing.join(0.1)
        assert closing.is_alive()
        system.goes_on.set()
        closing.join(10)
        assert not closing.is_alive()


def test_pools_that_cannot_be_opened_leave_nothing_behind(peers: PeerPools) -> None:
    pool = make_pool()
    name = share(pool)
    before = num_descriptors("pipe:")
    for wrong in (
        name._replace(num_blocks=10),
        name._replace(num_blocks=0),
        name._replace(num_blocks=8, offset=4),
        name._replace(process_id=2**40),
        name._replace(handle=b"99999"),
    ):
        with pytest.raises(UnavailableError) as caught, peers.use(wrong):
            raise AssertionError
        assert caught.value.reason == "KV_MEMORY_UNREACHABLE"
    assert num_descriptors("pipe:") == before
    assert watchers() == []


def test_a_pool_that_cannot_be_exported_has_no_name() -> None:
    assert name_pool(make_pool(), HostSharing(exports=False)) is None


@pytest.mark.parametrize("exports", [True, False])
def test_a_cache_that_others_may_have_open_is_left_to_the_end_of_the_process(
    demo_model: Path, exports: bool
) -> None:
    device = Device(demo_model, HostSharing(exports=exports))
    assert (device.kv.name is not None) == exports
    num_bytes = device.kv.num_blocks * device.kv.layout.num_bytes
    assert isinstance(device.kv.stager, KvStager)
    planes = device.kv.stager._pool.planes
    device.engine.stop()
    assert planes.untyped_storage().nbytes() == (num_bytes if exports else 0)


def test_blocks_are_copied_between_pools_of_different_sizes(peers: PeerPools) -> None:
    theirs, ours = make_pool(num_blocks=12), make_pool(num_blocks=9)
    ours.planes.zero_()
    source, target = staged(theirs, None), staged(ours, peers)
    payload = read_kv(source, [11, 0, 5], 1, 2)
    checksum = target.copy_from(share(theirs), [11, 0, 5], [8, 3, 1], 1, 2)
    assert checksum == source.checksum([11, 0, 5], 1, 2) == checksum_of(payload)
    assert read_kv(target, [8, 3, 1], 1, 2) == payload
    assert not ours.planes[:2].any()
    assert not ours.planes[:, [0, 2, 4, 5, 6, 7]].any()


def test_a_checksum_is_that_of_the_copies(peers: PeerPools) -> None:
    theirs, ours = make_pool(), make_pool()
    target = staged(ours, peers)
    name = share(theirs)
    told = staged(theirs, None).checksum([7, 2], 0, 3)
    for plane, block, word in ((0, 7, 0), (5, 2, 9), (3, 7, 19)):
        theirs.planes[plane, block, word] ^= 1 << 40
        got = target.copy_from(name, [7, 2], [0, 1], 0, 3)
        assert got != told
        assert got == target.checksum([0, 1], 0, 3)
        theirs.planes[plane, block, word] ^= 1 << 40
    assert target.copy_from(name, [7, 2], [0, 1], 0, 3) == told


def test_a_copy_and_a_sum_follow_the_last_moves(peers: PeerPools) -> None:
    pool, theirs = make_pool(), make_pool()
    kv, name = staged(pool, peers), share(theirs)
    steps = HostAccelerator()
    for read in (
        partial(kv.checksum, [0], 0, 1),
        partial(kv.copy_from, name, [0], [1], 0, 1),
    ):
        pool.moved = moved = steps.record()
        read()
        assert moved.query()


def test_blocks_that_either_side_lacks_are_refused(peers: PeerPools) -> None:
    target = staged(make_pool(), peers)
    theirs = make_pool(num_blocks=12)
    name = share(theirs)
    for sources, targets in (([12], [0]), ([0], [9]), ([-1], [0])):
        with pytest.raises(KvIntegrityError, match=r"block -?\d+ was named"):
            target.copy_from(name, sources, targets, 0, 3)
    with pytest.raises(KvIntegrityError, match="layers 2 to 4 were named"):
        target.copy_from(name, [0], [0], 2, 3)


def test_an_engine_without_peers_says_so() -> None:
    with pytest.raises(UnavailableError, match="does not read others' devices"):
        staged(make_pool(), None).copy_from(share(make_pool()), [0], [0], 0, 1)
