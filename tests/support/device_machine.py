"""What an engine computes with on a device, or on the CPU as if it were one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pagemesh.config import SchedulerConfig
from pagemesh.core.kv import KvAccess
from pagemesh.engine.accelerator import Accelerator
from pagemesh.engine.cuda.kv_pool import DeviceBlockMover, KvPool
from pagemesh.engine.cuda.kv_stager import KvStager
from pagemesh.engine.cuda.runner import CudaRunner
from pagemesh.kv_memory.staged import NUM_SLOTS, StagedKv, staging_area
from pagemesh.models.loader import LoadedModel


@dataclass
class DeviceMachine:
    """Makes runners, with graphs or without."""

    accelerator: Accelerator
    graphs: bool = True
    chunk_sizes: Sequence[int] | None = None
    """Tokens of the captured steps, of all sizes where it is None; Triton's interpreter takes seconds for each."""

    def __call__(
        self,
        model: LoadedModel,
        config: SchedulerConfig,
        block_size: int,
        num_blocks: int,
        num_swap_blocks: int = 0,
    ) -> tuple[CudaRunner, KvAccess]:
        accelerator = self.accelerator
        layout = model.block_layout(block_size)
        pool = KvPool(layout, num_blocks, accelerator.device)
        swap_space = accelerator.pin(num_swap_blocks * layout.num_bytes)
        slots = accelerator.pin(NUM_SLOTS * staging_area(layout).slot_bytes).view(NUM_SLOTS, -1)
        accelerator.synchronize()
        mover = DeviceBlockMover(
            pool, accelerator, swap_space.view(num_swap_blocks, layout.num_bytes)
        )
        runner = CudaRunner(
            model,
            pool,
            mover,
            accelerator,
            max_num_seqs=config.max_num_seqs,
            max_num_batched_tokens=config.max_num_batched_tokens,
        )
        if self.graphs:
            runner.capture(num_tokens=self.chunk_sizes)
        stager = KvStager(pool, accelerator, slots)
        return runner, StagedKv(layout, num_blocks, slots.numpy(), stager)
