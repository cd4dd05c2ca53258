"""Memory of other workers: mapped once, kept from stream to stream, and not behind the end of its owner."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from pagemesh.core.kv import KvLayout
from pagemesh.errors import UnavailableError
from pagemesh.kv_memory.memory import KvMemory, MemoryName, open_memory
from pagemesh.kv_transfer import peer_memories
from pagemesh.kv_transfer.peer_memories import PeerMemories
from tests.support.mappings import num_descriptors, num_read_only_mappings
from tests.support.waiting import wait_until

pytestmark = pytest.mark.usefixtures("settled_heap")

LAYOUT = KvLayout.uniform(block_size=4, num_layers=3, num_kv_heads=1, head_dim=2, dtype="float32")
OWNER = ("prefill-0", 7)
PROGRAM = """
import os, sys
from pagemesh.core.kv import KvLayout
from pagemesh.kv_memory.memory import KvMemory, open_memory

memory = KvMemory(KvLayout.uniform(4, 3, 1, 2, "float32"), 10, open_memory())
name = memory.share()
print(name.process_id, name.descriptor, name.num_blocks, name.nonce.hex(), flush=True)
sys.stdin.read()
"""


@pytest.fixture
def memory() -> KvMemory:
    descriptor = open_memory()
    memory = KvMemory(LAYOUT, 10, descriptor)
    os.close(descriptor)
    return memory


@pytest.fixture
def name(memory: KvMemory) -> MemoryName:
    name = memory.share()
    assert name is not None
    return name


@pytest.fixture
async def memories() -> PeerMemories:
    return PeerMemories(LAYOUT)


@pytest.fixture
def owner() -> Iterator[tuple[subprocess.Popen[str], MemoryName]]:
    """A process with memory of its own."""
    with subprocess.Popen(
        [sys.executable, "-c", PROGRAM], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        process_id, descriptor, num_blocks, nonce = process.stdout.readline().split()
        yield (
            process,
            MemoryName(int(process_id), int(descriptor), int(num_blocks), bytes.fromhex(nonce)),
        )
        process.kill()


async def test_memory_is_mapped_once_for_all_streams(
    memories: PeerMemories, name: MemoryName
) -> None:
    before = num_read_only_mappings()
    with memories.use(OWNER) as first, memories.use(OWNER) as second:
        assert num_read_only_mappings() == before
        assert first(name) is second(name)
        assert num_read_only_mappings() == before + 1
    with memories.use(OWNER) as third:
        third(name)
        assert num_read_only_mappings() == before + 1
    memories.close()
    memories.close()
    assert num_read_only_mappings() == before


async def test_memory_that_nobody_uses_is_let_go_of(
    memories: PeerMemories, name: MemoryName, monkeypatch: pytest.MonkeyPatch
) -> None:
    before, descriptors = num_read_only_mappings(), num_descriptors()
    monkeypatch.setattr(peer_memories, "IDLE_SECONDS", 0.02)
    with memories.use(OWNER) as open_memory:
        open_memory(name)
    await wait_until(lambda: num_read_only_mappings() == before, "nothing is mapped")
    assert num_descriptors() == descriptors


async def test_memory_is_let_go_of_when_its_owner_ends(
    memories: PeerMemories, owner: tuple[subprocess.Popen[str], MemoryName]
) -> None:
    before, descriptors = num_read_only_mappings(), num_descriptors()
    process, name = owner
    with memories.use(OWNER) as open_memory:
        open_memory(name)
    assert num_read_only_mappings() == before + 1
    process.kill()
    await wait_until(lambda: num_read_only_mappings() == before, "nothing is mapped")
    assert num_descriptors() == descriptors


async def test_memory_of_an_owner_that_ended_is_let_go_of_with_the_last_stream(
    memories: PeerMemories, owner: tuple[subprocess.Popen[str], MemoryName]
) -> None:
    before, descriptors = num_read_only_mappings(), num_descriptors()
    process, name = owner
    with memories.use(OWNER) as open_memory:
        open_memory(name)
        process.kill()
        # The descriptor of the memory stays; that of its owner is closed.
        await wait_until(lambda: num_descriptors() == descriptors + 1, "the end was noticed")
        assert open_memory(name).blocks.shape == (3, 2, 10, 32)
    assert num_read_only_mappings() == before
    assert num_descriptors() == descriptors


async def test_an_owner_cannot_change_its_memory(memories: PeerMemories, name: MemoryName) -> None:
    with memories.use(OWNER) as open_memory:
        open_memory(name)
        with pytest.raises(UnavailableError, match="other memory before"):
            open_memory(name._replace(nonce=bytes(16)))
    memories.close()


@pytest.mark.parametrize(
    "wrong",
    [{"nonce": bytes(16)}, {"process_id": 0}, {"process_id": 2**32 - 1}],
    ids=["nonce", "no process", "more than processes can be"],
)
async def test_what_cannot_be_mapped_leaves_nothing(
    memories: PeerMemories, name: MemoryName, wrong: dict[str, Any]
) -> None:
    descriptors = num_descriptors()
    with memories.use(OWNER) as open_memory:
        for _ in range(2):
            with pytest.raises(UnavailableError) as caught:
                open_memory(name._replace(**wrong))
            assert caught.value.reason == "KV_MEMORY_UNREACHABLE"
    assert num_descriptors() == descriptors
