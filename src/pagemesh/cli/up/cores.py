"""What the workers of a mesh share on a host: their cores, which they lend each other, and their weights. No torch."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import NamedTuple

from pagemesh.cli.settings import UpConfig
from pagemesh.config.environment import CORES_VARIABLE, WEIGHTS_VARIABLE
from pagemesh.engine.shared_cores import core_table
from pagemesh.engine.shared_weights import weight_memory
from pagemesh.sizing.machine import usable_cores


class Shared(NamedTuple):
    """Descriptors for all workers of a host to inherit."""

    cores: int
    """Of the table by which they lend each other cores."""

    weights: int
    """Of the memory where they hold the same weights once."""

    def environment(self, index: int) -> dict[str, str]:
        """What says it to the worker with this place in the table."""
        return {CORES_VARIABLE: f"{self.cores}:{index}", WEIGHTS_VARIABLE: str(self.weights)}


def worker_threads(config: UpConfig) -> list[int]:
    """Threads of each worker while all of them compute."""
    num_workers = len(config.served.models) * (config.prefill + config.decode)
    return share_cores(_num_cores(config), num_workers)


def share_cores(num_cores: int, num_workers: int) -> list[int]:
    """Threads of each worker: equal shares, what remains to the last ones, at least one each."""
    share, rest = divmod(num_cores, num_workers)
    return [max(1, share + (index >= num_workers - rest)) for index in range(num_workers)]


def can_share(num_workers: int) -> bool:
    """Whether so many workers that compute on CPUs share cores and weights."""
    return num_workers > 1 and sys.platform == "linux"


@contextmanager
def shared_by_workers(config: UpConfig, gpus: Sequence[str]) -> Iterator[Shared | None]:
    """What they share; None for a single one, and where GPUs compute."""
    threads = worker_threads(config)
    if gpus or not can_share(len(threads)):
        yield None
        return
    with ExitStack() as stack:
        cores = stack.enter_context(core_table(_num_cores(config), threads))
        yield Shared(cores, stack.enter_context(weight_memory()))


def _num_cores(config: UpConfig) -> int:
    return config.threads or usable_cores()
