"""Which cores the workers of a mesh compute on, and whether they lend each other some. No torch."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext

from pagemesh.cli.settings import UpConfig
from pagemesh.engine.machine_cores import usable_cores
from pagemesh.engine.shared_cores import core_table


def worker_threads(config: UpConfig) -> list[int]:
    """Threads of each worker while all of them compute."""
    num_workers = len(config.served.models) * (config.prefill + config.decode)
    return share_cores(_num_cores(config), num_workers)


def share_cores(num_cores: int, num_workers: int) -> list[int]:
    """Threads of each worker: equal shares, what remains to the last ones, at least one each."""
    share, rest = divmod(num_cores, num_workers)
    return [max(1, share + (index >= num_workers - rest)) for index in range(num_workers)]


def cores_to_lend(config: UpConfig, gpus: Sequence[str]) -> AbstractContextManager[int | None]:
    """The table by which workers lend each other cores; None for a single one, and where GPUs compute."""
    threads = worker_threads(config)
    if len(threads) == 1 or gpus or sys.platform != "linux":
        return nullcontext()
    return core_table(_num_cores(config), threads)


def _num_cores(config: UpConfig) -> int:
    return config.threads or usable_cores()
