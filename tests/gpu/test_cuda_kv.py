"""On a GPU: weights as on the host, and blocks of KV moved, read and written as there."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from pagemesh.core.kv import KvLayout
from pagemesh.engine.cpu_runner import KvStorage
from pagemesh.engine.cuda.accelerator import CudaAccelerator
from pagemesh.engine.cuda.kv_pool import DeviceBlockMover, KvPool
from pagemesh.engine.cuda.kv_stager import KvStager
from pagemesh.engine.cuda.pinned import HostBuffers
from pagemesh.kv_memory.staged import StagedKv
from pagemesh.loading.cuda_weights import DeviceWeightWriter
from pagemesh.models.parameters import CheckpointParameters
from pagemesh.scheduler.batch import BlockMoves
from tests.support.kv_bytes import read_kv
from tests.unit.engine.cuda.test_kv_pool import LAYOUTS, fill, layout_name
from tests.unit.loading.test_weight_writer import SHAPES, SOURCES, write


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_weights_are_those_of_the_host(
    accelerator: CudaAccelerator, tmp_path: Path, dtype: torch.dtype
) -> None:
    writer = DeviceWeightWriter(accelerator, buffer_bytes=1000)
    with write(tmp_path) as checkpoint, writer.computing():
        parameters = CheckpointParameters(checkpoint, SOURCES, SHAPES, dtype, writer)
        on_device = {name: parameters.read(name) for name in SHAPES}
        parameters.check()
    with write(tmp_path) as checkpoint:
        on_host = CheckpointParameters(checkpoint, SOURCES, SHAPES, dtype)
        for name, tensor in on_device.items():
            assert tensor.device == accelerator.device
            assert torch.equal(tensor.cpu(), on_host.read(name))


@pytest.mark.parametrize("layout", LAYOUTS, ids=layout_name)
def test_blocks_are_moved_read_and_written_as_on_the_host(
    accelerator: CudaAccelerator, layout: KvLayout
) -> None:
    host, pool = KvStorage(layout, 9), KvPool(layout, 9, accelerator.device)
    fill(host)
    buffers = HostBuffers.reserve(layout, 5, None)
    buffers.pin(accelerator)
    stager = KvStager(pool, accelerator, buffers.slots)
    kv = StagedKv(layout, 9, buffers.slots.numpy(), stager)
    mover = DeviceBlockMover(pool, accelerator, buffers.swap_space)
    everything = list(range(9)), 0, layout.num_layers
    kv.write(*everything, read_kv(host, *everything))
    assert read_kv(kv, *everything) == read_kv(host, *everything)
    mover.move(BlockMoves(swap_outs=((8, 0), (1, 4)), swap_ins=((0, 3),), copies=((3, 5),)))
    # Without a wait: whoever reads follows the moves.
    for source, target in ((8, 3), (8, 5), (1, 1)):
        read = read_kv(kv, [target], 0, layout.num_layers)
        assert read == read_kv(host, [source], 0, layout.num_layers)
    accelerator.synchronize()
    assert bytes(buffers.swap_space[4].numpy()) == read_kv(host, [1], 0, layout.num_layers)
    buffers.unpin(accelerator)
