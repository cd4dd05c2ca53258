"""Runners of device tensors, over the CPU."""

from __future__ import annotations

from dataclasses import dataclass

from pagemesh.engine.cpu_runner import BlockMover, KvStorage
from pagemesh.engine.cuda.runner import CudaRunner
from pagemesh.kernels.dispatch import using
from pagemesh.models.loader import LoadedModel
from tests.support.host_accelerator import HostAccelerator


@dataclass
class Made:
    """A runner and what is below it."""

    runner: CudaRunner
    kv: KvStorage
    accelerator: HostAccelerator


def make_device_runner(
    model: LoadedModel,
    block_size: int = 4,
    num_blocks: int = 16,
    max_num_seqs: int = 8,
    max_num_batched_tokens: int = 24,
    accelerator: HostAccelerator | None = None,
) -> Made:
    """A runner that samples in Triton, and writes KV by its definition, which leaves out padding; all else is the
    CPU's."""
    kv = KvStorage(model.block_layout(block_size), num_blocks)
    accelerator = accelerator or HostAccelerator()
    with using("cuda", "sampling", "logprobs"), using("reference", "write_kv"):
        runner = CudaRunner(
            model,
            kv,
            BlockMover(kv, 0),
            accelerator,
            max_num_seqs=max_num_seqs,
            max_num_batched_tokens=max_num_batched_tokens,
        )
    return Made(runner, kv, accelerator)
