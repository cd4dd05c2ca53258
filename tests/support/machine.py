"""What an engine computes with, made for its scheduler's settings and the size of its KV."""

from __future__ import annotations

from typing import Protocol

from pagemesh.config import SchedulerConfig
from pagemesh.core.kv import KvAccess
from pagemesh.engine.cpu_runner import CpuRunner
from pagemesh.engine.runner import Runner
from pagemesh.models.loader import LoadedModel


class MakeRunner(Protocol):
    def __call__(
        self,
        model: LoadedModel,
        config: SchedulerConfig,
        block_size: int,
        num_blocks: int,
        num_swap_blocks: int = 0,
    ) -> tuple[Runner, KvAccess]: ...


def on_cpu(
    model: LoadedModel,
    config: SchedulerConfig,
    block_size: int,
    num_blocks: int,
    num_swap_blocks: int = 0,
) -> tuple[CpuRunner, KvAccess]:
    runner = CpuRunner(model, block_size, num_blocks, num_swap_blocks=num_swap_blocks)
    return runner, runner.kv
