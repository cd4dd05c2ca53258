"""What the workers of a mesh share on a host: cores, which they lend each other, weights, and GPUs. No torch."""

from __future__ import annotations

import ctypes
import os
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import NamedTuple

from pagemesh.cli.settings import UpConfig
from pagemesh.config import HardwareConfig
from pagemesh.config.environment import CORES_VARIABLE, WEIGHTS_VARIABLE
from pagemesh.engine.shared_cores import core_table
from pagemesh.errors import ConfigError
from pagemesh.loading.shared_weights import weight_memory
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


_DRIVER = "libcuda.so.1"


class GpuShare(NamedTuple):
    """What one worker gets."""

    gpu: str
    """As CUDA_VISIBLE_DEVICES names it."""

    utilization: float
    """Its --gpu-memory-utilization."""


def gpus_for(hardware: HardwareConfig) -> tuple[str, ...]:
    """The GPUs that workers with these settings use; ConfigError when they must, but there are none."""
    gpus = () if hardware.device == "cpu" else visible_gpus()
    if hardware.device == "cuda" and not gpus:
        raise ConfigError("--device is 'cuda', but NVIDIA's driver sees no GPU on this machine")
    return gpus


def visible_gpus(
    environment: Mapping[str, str] = os.environ, driver: str = _DRIVER
) -> tuple[str, ...]:
    """Names for CUDA_VISIBLE_DEVICES of the GPUs that processes started from here see.

    NVIDIA's driver says how many there are: it heeds the variable, and the limits of containers.
    """
    try:
        cuda = ctypes.CDLL(driver)
        count = ctypes.c_int(0)
        # CUDA driver API: 0 is success. Without a GPU, the first of them fails.
        if cuda.cuInit(0) != 0 or cuda.cuDeviceGetCount(ctypes.byref(count)) != 0:
            return ()
    except (OSError, AttributeError):
        return ()
    named = [name.strip() for name in environment.get("CUDA_VISIBLE_DEVICES", "").split(",")]
    names = [name for name in named if name] or [str(index) for index in range(count.value)]
    return tuple(names[: count.value])


def smallest_gpu(num_gpus: int, driver: str = _DRIVER) -> int | None:
    """Bytes of the smallest of the GPUs that `visible_gpus` counts; None where the driver does not say."""
    try:
        cuda = ctypes.CDLL(driver)
        sizes = []
        for index in range(num_gpus):
            device, size = ctypes.c_int(0), ctypes.c_size_t(0)
            if cuda.cuDeviceGet(ctypes.byref(device), index) != 0:
                return None
            if cuda.cuDeviceTotalMem_v2(ctypes.byref(size), device) != 0:
                return None
            sizes.append(size.value)
    except (OSError, AttributeError):
        return None
    return min(sizes, default=None)


def share_gpus(
    gpus: Sequence[str], num_workers: int, utilization: float
) -> Sequence[GpuShare | None]:
    """GPUs by turns, None without any; of each, its workers share what may be used equally."""
    if not gpus:
        return [None] * num_workers
    chosen = [gpus[index % len(gpus)] for index in range(num_workers)]
    workers_on = Counter(chosen)
    # Down to a thousandth: sums of shares must not exceed the whole.
    return [GpuShare(gpu, int(utilization / workers_on[gpu] * 1000) / 1000) for gpu in chosen]
