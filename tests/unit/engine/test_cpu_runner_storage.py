from __future__ import annotations

import errno
import os
import threading

import psutil
import pytest
import torch

from pagemesh.core.kv import KvLayout
from pagemesh.engine.cpu_runner import KvStorage
from pagemesh.errors import ConfigError, KvIntegrityError
from pagemesh.kv_memory.memory import KvMemory, open_memory
from tests.support.kv_bytes import read_kv


def make_storage(dtype: str = "float32", num_blocks: int = 9) -> KvStorage:
    """Every element is different."""
    layout = KvLayout.uniform(block_size=4, num_layers=3, num_kv_heads=2, head_dim=5, dtype=dtype)
    storage = KvStorage(layout, num_blocks)
    for index, layer in enumerate(storage.layers):
        values = torch.arange(layer.numel(), dtype=torch.float32).view(layer.shape)
        layer.copy_(values % 251 + index)
    return storage


def test_layers_start_as_zeros_in_the_layouts_shape_and_type() -> None:
    storage = KvStorage(KvLayout.uniform(4, 3, 2, 5, "bfloat16"), 9)
    assert [tuple(layer.shape) for layer in storage.layers] == [(2, 9, 4, 2, 5)] * 3
    assert all(layer.dtype == torch.bfloat16 for layer in storage.layers)
    assert not any(layer.any() for layer in storage.layers)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_reading_gives_elements_in_the_agreed_order(dtype: str) -> None:
    storage = make_storage(dtype)
    payload = read_kv(storage, [7, 2, 3, 0], first_layer=1, num_layers=2)
    expected = torch.stack(list(storage.layers))[1:3][:, :, [7, 2, 3, 0]]
    assert payload == expected.contiguous().view(torch.uint8).numpy().tobytes()
    assert len(payload) == 2 * 4 * storage.layout.num_bytes_per_layer


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_writing_elsewhere_gives_the_same_blocks_and_touches_no_others(dtype: str) -> None:
    source, target = make_storage(dtype), KvStorage(make_storage(dtype).layout, 12)
    payload = read_kv(source, [7, 2, 3], 0, 3)
    target.write([1, 11, 5], 0, 3, payload)
    assert read_kv(target, [1, 11, 5], 0, 3) == payload
    for mine, other in zip(source.layers, target.layers, strict=True):
        assert torch.equal(other[:, [1, 11, 5]], mine[:, [7, 2, 3]])
        untouched = [0, 2, 3, 4, 6, 7, 8, 9, 10]
        assert not other[:, untouched].any()


def test_writing_some_layers_leaves_the_others() -> None:
    storage = make_storage()
    before = read_kv(storage, [4], 0, 1) + read_kv(storage, [4], 2, 1)
    storage.write([4], 1, 1, bytes(storage.layout.num_bytes_per_layer))
    assert not storage.layers[1][:, 4].any()
    assert read_kv(storage, [4], 0, 1) + read_kv(storage, [4], 2, 1) == before


@pytest.mark.parametrize("is_shared", [False, True], ids=["own", "shared"])
def test_a_cleared_memory_is_zeros_that_take_no_memory(*, is_shared: bool) -> None:
    descriptor = open_memory() if is_shared else None
    layout = KvLayout.uniform(64, 4, 4, 64, "float32")
    memory = KvMemory(layout, 40, descriptor)
    process = psutil.Process()
    before = process.memory_info().rss
    memory.bytes[:] = 7
    filled = process.memory_info().rss - before
    memory.clear()
    left = process.memory_info().rss - before
    size = 40 * layout.num_bytes
    assert filled > 0.9 * size
    assert left < 0.2 * size
    if descriptor is not None:
        assert os.fstat(descriptor).st_blocks * 512 < 0.2 * size
    assert not memory.bytes.any()
    memory.bytes[1] = 3
    assert memory.bytes.sum() == 3 * memory.bytes[1].size
    if descriptor is not None:
        os.close(descriptor)


def test_memory_without_holes_is_written() -> None:
    class Refusing:
        def madvise(self, _: int) -> None:
            raise OSError(errno.EOPNOTSUPP, "no holes")

    memory = make_storage()
    memory._mapping = Refusing()  # type: ignore[assignment]
    memory.clear()
    assert not memory.bytes.any()


def test_no_blocks_are_no_bytes() -> None:
    storage = make_storage()
    assert read_kv(storage, [], 0, 3) == b""
    storage.write([], 0, 3, b"")


@pytest.mark.parametrize("num_bytes", [0, 319, 321, 640])
def test_a_payload_of_another_size_is_refused(num_bytes: int) -> None:
    storage = make_storage()
    before = read_kv(storage, [3], 0, 3)
    with pytest.raises(KvIntegrityError) as caught:
        storage.write([3], 1, 1, b"x" * num_bytes)
    assert caught.value.message == (
        f"KV of 1 blocks in 1 layers has {num_bytes} bytes, but must have 320"
    )
    assert read_kv(storage, [3], 0, 3) == before


@pytest.mark.parametrize(("block_ids", "first", "num"), [([0], 2, 2), ([9], 0, 1), ([-1], 0, 1)])
def test_blocks_and_layers_out_of_range_are_refused(
    block_ids: list[int], first: int, num: int
) -> None:
    storage = make_storage()
    with pytest.raises(KvIntegrityError, match="but there are"):
        read_kv(storage, block_ids, first, num)
    with pytest.raises(KvIntegrityError, match="but there are"):
        storage.write(block_ids, first, num, bytes(num * storage.layout.num_bytes_per_layer))


def test_threads_may_move_different_blocks_at_once() -> None:
    storage = make_storage(num_blocks=64)
    originals = [read_kv(storage, [block], 0, 3) for block in range(64)]

    def rotate(first: int) -> None:
        for _ in range(20):
            blocks = list(range(first, first + 16))
            storage.write(blocks[1:] + blocks[:1], 0, 3, read_kv(storage, blocks, 0, 3))

    threads = [threading.Thread(target=rotate, args=(first,)) for first in range(0, 64, 16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for first in range(0, 64, 16):
        for offset in range(16):
            # Twenty rotations of sixteen blocks move each by four.
            moved = read_kv(storage, [first + (offset + 4) % 16], 0, 3)
            assert moved == originals[first + offset]


def test_memory_is_committed_when_blocks_are_written() -> None:
    process = psutil.Process()
    before = process.memory_info().rss
    storage = KvStorage(KvLayout.uniform(16, 4, 8, 128, "float32"), 1024)
    assert storage.layout.num_bytes * 1024 == 512 << 20
    assert process.memory_info().rss - before < 64 << 20
    storage.layers[0].fill_(1.0)
    assert process.memory_info().rss - before > 100 << 20


def test_more_memory_than_there_is_is_refused() -> None:
    with pytest.raises(ConfigError, match="--kv-cache-memory"):
        KvStorage(KvLayout.uniform(16, 4, 8, 128, "float32"), 1 << 40)


def test_two_storages_over_one_descriptor_are_the_same_memory() -> None:
    descriptor = open_memory()
    try:
        layout = KvLayout.uniform(4, 3, 2, 5, "float32")
        one, other = KvStorage(layout, 9, descriptor), KvMemory(layout, 9, descriptor)
    finally:
        os.close(descriptor)
    one.layers[1][0, 7, 2] = 5.0
    assert read_kv(other, [7], 1, 1) == read_kv(one, [7], 1, 1)
    assert any(read_kv(other, [7], 1, 1))
    other.write([3], 0, 1, bytes([1]) * layout.num_bytes_per_layer)
    assert one.layers[0][:, 3].all()
