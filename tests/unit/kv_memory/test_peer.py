"""KV memory of another process: it is found by its name, it alone, and it is gone when it is let go."""

from __future__ import annotations

import fcntl
import os
import signal
import socket
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import xxhash
from hypothesis import given, settings
from hypothesis import strategies as st

from pagemesh.core.kv import KvLayout
from pagemesh.errors import KvIntegrityError, UnavailableError
from pagemesh.kv_memory.memory import KvMemory, MemoryName, joint_runs, open_memory
from pagemesh.kv_memory.peer import PeerMemory
from tests.support.kv_bytes import read_kv
from tests.support.mappings import num_descriptors, num_read_only_mappings

pytestmark = pytest.mark.usefixtures("settled_heap")

LAYOUT = KvLayout.uniform(block_size=4, num_layers=3, num_kv_heads=1, head_dim=2, dtype="float32")


def make_memory(num_blocks: int = 10) -> KvMemory:
    descriptor = open_memory()
    memory = KvMemory(LAYOUT, num_blocks, descriptor)
    os.close(descriptor)
    values = np.arange(memory.bytes.size) * 2654435761 >> 7
    memory.bytes[:] = values.astype(np.uint8).reshape(memory.bytes.shape)
    return memory


@pytest.fixture
def memory() -> KvMemory:
    return make_memory()


@pytest.fixture
def name(memory: KvMemory) -> MemoryName:
    name = memory.share()
    assert name is not None
    return name


@pytest.fixture
def peer(name: MemoryName) -> Iterator[PeerMemory]:
    peer = PeerMemory(name, LAYOUT)
    yield peer
    peer.close()


def test_what_is_written_later_is_seen(memory: KvMemory, peer: PeerMemory) -> None:
    assert peer.blocks.shape == (3, 2, 10, 32)
    assert np.array_equal(peer.blocks, memory.bytes)
    memory.bytes[2, 1, 9, 31] ^= 1
    assert np.array_equal(peer.blocks, memory.bytes)


def test_it_cannot_be_written(peer: PeerMemory) -> None:
    with pytest.raises(ValueError, match="read-only"):
        peer.blocks[0, 0, 0, 0] = 1


def test_it_stays_readable_when_its_owner_is_gone(memory: KvMemory, peer: PeerMemory) -> None:
    expected = memory.bytes.copy()
    memory.bytes = np.empty(0, np.uint8)
    del memory
    assert np.array_equal(peer.blocks, expected)


def test_nothing_is_mapped_any_more_when_it_is_closed(name: MemoryName) -> None:
    before = num_read_only_mappings()
    peer = PeerMemory(name, LAYOUT)
    assert num_read_only_mappings() == before + 1
    peer.close()
    peer.close()
    assert num_read_only_mappings() == before


def refusal(name: MemoryName, layout: KvLayout = LAYOUT) -> str:
    before = num_read_only_mappings()
    named = Path(f"/proc/{name.process_id}/fd/{name.descriptor}")
    kinds = (str(named.readlink()),) if named.is_symlink() else ()
    descriptors = num_descriptors(*kinds)
    with pytest.raises(UnavailableError) as caught:
        PeerMemory(name, layout)
    assert caught.value.reason == "KV_MEMORY_UNREACHABLE"
    assert num_read_only_mappings() == before
    assert num_descriptors(*kinds) == descriptors
    return caught.value.message


def test_other_memory_is_refused(name: MemoryName) -> None:
    assert "other memory" in refusal(name._replace(nonce=bytes(16)))
    assert "other memory" in refusal(name._replace(nonce=name.nonce[:8]))
    assert "no file of" in refusal(name._replace(num_blocks=9))
    assert "cannot be read" in refusal(name._replace(descriptor=99_999))
    assert "cannot be read" in refusal(name._replace(process_id=2**22 + 1))
    assert "cannot be read" in refusal(name._replace(process_id=2**32 - 1))
    assert "cannot be read" in refusal(name._replace(num_blocks=2**62))
    other = KvLayout.uniform(
        block_size=8, num_layers=3, num_kv_heads=1, head_dim=2, dtype="float32"
    )
    assert "no file of" in refusal(name, other)


def test_memory_that_may_shrink_is_refused(name: MemoryName) -> None:
    size = 10 * LAYOUT.num_bytes + 16
    descriptor = os.memfd_create("test")
    os.ftruncate(descriptor, size)
    os.pwrite(descriptor, name.nonce, size - 16)
    assert "may shrink" in refusal(name._replace(descriptor=descriptor))
    os.close(descriptor)


def test_what_is_no_memory_is_not_even_opened(name: MemoryName, tmp_path: Path) -> None:
    ignored = signal.signal(signal.SIGIO, signal.SIG_IGN)
    with (tmp_path / "file").open("wb") as file:
        # A lease of the file, which whoever opens it breaks.
        fcntl.fcntl(file, fcntl.F_SETLEASE, fcntl.F_WRLCK)
        refusal(name._replace(descriptor=file.fileno()))
        assert fcntl.fcntl(file, fcntl.F_GETLEASE) == fcntl.F_WRLCK
        fcntl.fcntl(file, fcntl.F_SETLEASE, fcntl.F_UNLCK)
    signal.signal(signal.SIGIO, ignored)


def test_what_is_no_memory_is_refused_without_waiting(name: MemoryName) -> None:
    reader, writer = os.pipe()
    with socket.socket() as a_socket:
        for descriptor in (reader, writer, a_socket.fileno()):
            refusal(name._replace(descriptor=descriptor))
    os.close(reader)
    os.close(writer)


def test_shared_memory_keeps_its_size(memory: KvMemory, name: MemoryName) -> None:
    for size in (0, 100_000):
        with pytest.raises(PermissionError):
            os.ftruncate(name.descriptor, size)


def test_memory_of_ones_own_is_not_shared() -> None:
    assert KvMemory(LAYOUT, 3).share() is None


# Scattered ones go by the plane, consecutive ones run by run.
@pytest.mark.parametrize(
    ("source", "target"),
    [([7, 8, 9, 0], [3, 4, 6, 11]), ([2, 3, 4, 5, 6, 7, 8, 9], [1, 2, 3, 4, 5, 6, 7, 8])],
    ids=["scattered", "consecutive"],
)
def test_blocks_are_copied_with_the_checksum_of_the_copies(
    peer: PeerMemory, source: list[int], target: list[int]
) -> None:
    receiver = make_memory(12)
    receiver.bytes[:] = 0
    checksum = receiver.copy_from(peer.blocks, source, target, 1, 2)
    copied = peer.blocks[1:3][:, :, source].tobytes()
    assert read_kv(receiver, target, 1, 2) == copied
    assert checksum == xxhash.xxh3_64_intdigest(copied)
    untouched = [block for block in range(12) if block not in target]
    assert not receiver.bytes[:, :, untouched].any()
    assert not receiver.bytes[0].any()


@pytest.mark.parametrize(("source", "target"), [([10], [0]), ([0], [10]), ([-1], [0])])
def test_blocks_that_there_are_not_are_not_copied(
    peer: PeerMemory, source: list[int], target: list[int]
) -> None:
    with pytest.raises(KvIntegrityError, match="there are 10"):
        make_memory().copy_from(peer.blocks, source, target, 0, 1)


@given(st.lists(st.tuples(st.integers(0, 8), st.integers(0, 8)), max_size=12))
@settings(max_examples=200)
def test_runs_are_as_long_as_both_sides_allow(pairs: list[tuple[int, int]]) -> None:
    ones, others = [one for one, _ in pairs], [other for _, other in pairs]
    runs = list(joint_runs(ones, others))
    assert [(a + i, b + i) for a, b, count in runs for i in range(count)] == pairs
    for (a, b, count), (next_a, next_b, _) in pairwise(runs):
        assert (a + count, b + count) != (next_a, next_b)
