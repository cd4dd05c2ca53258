"""Blocks on a device: moved in order with the steps, read and written beside them."""

from __future__ import annotations

import threading

import numpy as np
import pytest
import torch

from pagemesh.core.kv import KvLayout
from pagemesh.engine.cpu_runner import KvStorage
from pagemesh.engine.cuda import kv_pool
from pagemesh.engine.cuda.kv_pool import DeviceBlockMover, KvPool, buffer_blocks
from pagemesh.engine.cuda.kv_stager import KvStager
from pagemesh.errors import ConfigError
from pagemesh.kernels.dispatch import using
from pagemesh.kv_memory.staged import StagedKv
from pagemesh.scheduler.batch import BlockMoves
from tests.support.host_accelerator import HostAccelerator
from tests.support.kv_bytes import read_kv

CPU = torch.device("cpu")
LAYOUT = KvLayout.uniform(block_size=4, num_layers=3, num_kv_heads=2, head_dim=5, dtype="float32")
LAYOUTS = [
    LAYOUT,
    KvLayout.uniform(block_size=1, num_layers=1, num_kv_heads=1, head_dim=4, dtype="bfloat16"),
    KvLayout.uniform(block_size=3, num_layers=2, num_kv_heads=1, head_dim=8, dtype="float8_e4m3fn"),
    KvLayout.uniform(
        block_size=16, num_layers=2, num_kv_heads=1, head_dim=8, dtype="float8_e4m3fn"
    ),
]


def layout_name(layout: KvLayout) -> str:
    return f"{layout.dtype}-{layout.num_bytes_per_layer // 2}"


def fill(kv: KvPool | KvStorage) -> None:
    """Every block is different."""
    for index, layer in enumerate(kv.layers):
        numbers = torch.arange(layer.view(torch.uint8).numel()) * (2 * index + 3) % 101
        layer.view(torch.uint8).copy_(numbers.view(layer.view(torch.uint8).shape))


def make_pool(layout: KvLayout = LAYOUT, num_blocks: int = 9) -> KvPool:
    pool = KvPool(layout, num_blocks, CPU)
    fill(pool)
    return pool


def blocks_of(pool: KvPool) -> list[bytes]:
    return [pool.planes[:, block].numpy().tobytes() for block in range(pool.num_blocks)]


def staged(pool: KvPool, slot_bytes: int, num_slots: int = 2) -> StagedKv:
    accelerator = HostAccelerator()
    slots = torch.zeros(num_slots, slot_bytes, dtype=torch.uint8)
    accelerator.adopt(slots)
    stager = KvStager(pool, accelerator, slots)
    return StagedKv(pool.layout, pool.num_blocks, slots.numpy(), stager)


@pytest.mark.parametrize("layout", LAYOUTS, ids=layout_name)
def test_a_pool_is_zero_at_first_and_has_the_layouts_shape_and_type(layout: KvLayout) -> None:
    pool = KvPool(layout, 7, CPU)
    shape = (2, 7, layout.block_size, *layout.group[1:])
    assert [tuple(layer.shape) for layer in pool.layers] == [shape] * layout.num_layers
    assert {str(layer.dtype) for layer in pool.layers} == {f"torch.{layout.dtype}"}
    assert not pool.planes.any()
    assert pool.planes.nbytes == 7 * layout.num_bytes
    pool.layers[-1].view(torch.uint8)[1, 6] = 1
    assert pool.planes[-1, 6].all()
    assert not pool.planes[:-1].any()


def test_a_pool_whose_blocks_are_no_whole_words_is_refused() -> None:
    layout = KvLayout.uniform(
        block_size=3, num_layers=2, num_kv_heads=1, head_dim=2, dtype="bfloat16"
    )
    with pytest.raises(
        ConfigError, match=r"--block-size is 3, .* of 8 bytes, .* they are 12 bytes"
    ):
        KvPool(layout, 7, CPU)


@pytest.mark.parametrize("layout", LAYOUTS, ids=layout_name)
@pytest.mark.parametrize("num_blocks_each", [1, 2, 100])
def test_blocks_on_a_device_are_read_and_written_like_those_of_the_host(
    layout: KvLayout, num_blocks_each: int
) -> None:
    host = KvStorage(layout, 9)
    fill(host)
    pool = make_pool(layout)
    # Buffers that hold one plane of a block, of two, or all there is.
    kv = staged(pool, num_blocks_each * layout.num_bytes_per_layer // 2)
    for block_ids, first, num in (([7, 2, 3, 0], 0, layout.num_layers), ([5], 0, 1), ([], 0, 1)):
        assert read_kv(kv, block_ids, first, num) == read_kv(host, block_ids, first, num)
    payload = read_kv(host, [1, 8, 4], 0, layout.num_layers)
    for side in (kv, host):
        side.write([6, 0, 2], 0, layout.num_layers, payload)
    everything = list(range(9)), 0, layout.num_layers
    assert read_kv(kv, *everything) == read_kv(host, *everything)
    assert read_kv(kv, [6, 0, 2], 0, layout.num_layers) == payload


def test_some_layers_alone_are_written() -> None:
    pool = make_pool()
    before = blocks_of(pool)
    kv = staged(pool, 1 << 16)
    kv.write([4], 1, 1, bytes(LAYOUT.num_bytes_per_layer))
    assert not pool.layers[1][:, 4].any()
    pool.layers[1][:, 4].copy_(make_pool().layers[1][:, 4])
    assert blocks_of(pool) == before


def test_threads_may_read_and_write_different_blocks_at_once() -> None:
    pool = make_pool(num_blocks=32)
    kv = staged(pool, 4 * LAYOUT.num_bytes_per_layer, num_slots=2)
    originals = [read_kv(kv, [block], 0, 3) for block in range(32)]

    def rotate(first: int) -> None:
        for _ in range(10):
            blocks = list(range(first, first + 8))
            kv.write(blocks[1:] + blocks[:1], 0, 3, read_kv(kv, blocks, 0, 3))

    threads = [threading.Thread(target=rotate, args=(first,)) for first in range(0, 32, 8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for first in range(0, 32, 8):
        for offset in range(8):
            # Ten rotations of eight blocks move each by two.
            moved = read_kv(kv, [first + (offset + 2) % 8], 0, 3)
            assert moved == originals[first + offset]


class Swapping:
    """A pool with a mover and a swap space of five blocks."""

    def __init__(self) -> None:
        self.accelerator = HostAccelerator()
        self.pool = make_pool()
        self.swap = torch.zeros(5, LAYOUT.num_bytes, dtype=torch.uint8)
        self.accelerator.adopt(self.swap)
        self.mover = DeviceBlockMover(self.pool, self.accelerator, self.swap)

    def settle(self) -> None:
        for accelerator in (self.accelerator, self.mover._copies):
            accelerator.synchronize()


@pytest.fixture(params=[(1, "cpu"), (100, "cpu"), (2, "cuda")], ids=str)
def swapping(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Swapping:
    """With buffers for so many blocks, and with those kernels."""
    num_blocks, backend = request.param
    monkeypatch.setattr(kv_pool, "BUFFER_BYTES", num_blocks * LAYOUT.num_bytes)
    with using(backend, "block_copy"):
        return Swapping()


def test_blocks_go_out_and_come_back_elsewhere(swapping: Swapping) -> None:
    before = blocks_of(swapping.pool)
    out = BlockMoves(swap_outs=((0, 4), (3, 0), (7, 2), (8, 1), (2, 3)))
    swapping.mover.move(out)
    swapping.pool.planes.zero_()
    swapping.mover.move(BlockMoves(swap_ins=((2, 0), (4, 1), (1, 2), (0, 8), (3, 3))))
    swapping.settle()
    after = blocks_of(swapping.pool)
    assert [after[i] for i in (0, 1, 2, 8, 3)] == [before[i] for i in (7, 0, 8, 3, 2)]
    assert not swapping.pool.planes[:, [4, 5, 6, 7]].any()


def test_the_swap_space_has_each_blocks_layers_side_by_side(swapping: Swapping) -> None:
    before = blocks_of(swapping.pool)
    swapping.mover.move(BlockMoves(swap_outs=((6, 1), (2, 4))))
    swapping.settle()
    assert swapping.swap[1].numpy().tobytes() == before[6]
    assert swapping.swap[4].numpy().tobytes() == before[2]
    assert not swapping.swap[[0, 2, 3]].any()


def test_what_a_list_of_moves_writes_the_next_one_reads(swapping: Swapping) -> None:
    before = blocks_of(swapping.pool)
    swapping.mover.move(
        BlockMoves(
            swap_outs=((0, 2), (1, 3), (4, 0)),
            swap_ins=((2, 5), (3, 0), (0, 1)),
            copies=((5, 6), (0, 7), (1, 8)),
        )
    )
    swapping.settle()
    after = blocks_of(swapping.pool)
    assert after[5] == after[6] == before[0]
    assert after[0] == after[7] == before[1]
    assert after[1] == after[8] == before[4]
    assert [after[i] for i in (2, 3, 4)] == [before[i] for i in (2, 3, 4)]


def test_copies_over_pcie_wait_for_the_blocks_and_the_blocks_for_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(kv_pool, "BUFFER_BYTES", LAYOUT.num_bytes)
    swapping = Swapping()
    steps, copies = swapping.accelerator, swapping.mover._copies
    assert isinstance(copies, HostAccelerator)
    # A buffer for one block: the third move waits until the first one's has been emptied.
    swapping.mover.move(BlockMoves(swap_outs=((0, 0), (1, 1), (2, 2))))
    assert [event.owner for event in copies.followed] == [steps, steps, steps]
    assert [event.owner for event in steps.followed] == [copies]
    swapping.settle()
    copies.followed.clear()
    steps.followed.clear()
    swapping.mover.move(BlockMoves(swap_ins=((0, 3), (1, 4), (2, 5))))
    assert [event.owner for event in steps.followed] == [copies, copies, copies]
    assert [event.owner for event in copies.followed] == [copies, copies, steps]


def test_moves_wait_for_nothing(swapping: Swapping) -> None:
    swapping.accelerator.refuses_waits = True
    swapping.mover.move(
        BlockMoves(swap_outs=((0, 2), (1, 3)), swap_ins=((2, 5),), copies=((5, 6),))
    )
    assert swapping.accelerator.num_waits == 0
    assert swapping.pool.moved is not None
    assert not swapping.pool.moved.query()


def test_readers_on_other_streams_find_the_moves_done() -> None:
    swapping = Swapping()
    before = blocks_of(swapping.pool)
    kv = staged(swapping.pool, 1 << 16)
    swapping.mover.move(BlockMoves(swap_outs=((3, 2),), swap_ins=((2, 5),)))
    swapping.accelerator.refuses_waits = False
    moved = np.frombuffer(read_kv(kv, [5], 0, 3), np.uint8).tobytes()
    assert moved == before[3]
    assert swapping.pool.moved is not None
    assert swapping.pool.moved.query()


def test_a_buffer_takes_what_the_swap_space_can_hold_at_most() -> None:
    assert buffer_blocks(2 << 20, 1000) == 32
    assert buffer_blocks(2 << 20, 7) == 7
    assert buffer_blocks(1 << 30, 7) == 1
    assert buffer_blocks(1 << 30, 0) == 0


def test_copies_need_no_swap_space() -> None:
    pool = make_pool()
    before = blocks_of(pool)
    swap = torch.zeros(0, LAYOUT.num_bytes, dtype=torch.uint8)
    DeviceBlockMover(pool, HostAccelerator(), swap).move(BlockMoves(copies=((1, 3), (8, 0))))
    assert [blocks_of(pool)[i] for i in (3, 0, 1, 8)] == [before[i] for i in (1, 8, 1, 8)]
