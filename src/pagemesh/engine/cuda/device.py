"""A GPU as an engine is built on it: its streams, its memory, the right to measure it alone."""

from __future__ import annotations

import fcntl
import os
import tempfile
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Final, Protocol

import structlog
import torch

from pagemesh.engine.accelerator import Accelerator
from pagemesh.engine.cuda.accelerator import CudaAccelerator, failing_at_start
from pagemesh.engine.cuda.ipc import CudaSharing
from pagemesh.engine.cuda.peer_pools import MemorySharing
from pagemesh.engine.cuda.toolchain import check_toolchain
from pagemesh.sizing.gpu_budget import GpuReading

log = structlog.get_logger(__name__)

_POLL_SECONDS: Final = 0.1
_PATIENCE: Final = 600.0
"""Seconds to wait for others that load on the same GPU. `pagemesh up` waits longer for its workers."""


class Gpu(Protocol):
    """One device."""

    @property
    def accelerator(self) -> Accelerator:
        """Asks it for work."""
        ...

    @property
    def sharing(self) -> MemorySharing:
        """Its memory, for other processes."""
        ...

    @property
    def total_bytes(self) -> int:
        """All memory that it has."""
        ...

    def read(self) -> GpuReading:
        """The memory now, when nothing that torch keeps for later use is counted as taken."""
        ...

    def reset_peak(self) -> None:
        """Count `peak` from now on."""
        ...

    def peak(self) -> int:
        """Most bytes that torch's allocator had taken since."""
        ...

    def alone(self) -> AbstractContextManager[None]:
        """Meanwhile no other engine of this user's loads on the device."""
        ...


class CudaGpu:
    """One CUDA device (https://docs.pytorch.org/docs/stable/notes/cuda.html#memory-management)."""

    def __init__(self, device: torch.device) -> None:
        """Makes the device the process's own; ConfigError where no kernels can be compiled for it, or it lets no other
        process in."""
        check_toolchain()
        self._device = device
        with failing_at_start("this process"):
            torch.cuda.set_device(device)
            self._accelerator = CudaAccelerator(device)
            # Makes the context, without which nothing of the device was asked for yet.
            torch.cuda.synchronize(device)
        self._sharing = CudaSharing(self._accelerator.device)

    @property
    def accelerator(self) -> CudaAccelerator:
        return self._accelerator

    @property
    def sharing(self) -> CudaSharing:
        return self._sharing

    @property
    def total_bytes(self) -> int:
        return int(torch.cuda.mem_get_info(self._device)[1])

    def read(self) -> GpuReading:
        torch.cuda.synchronize(self._device)
        torch.cuda.empty_cache()
        free, _ = torch.cuda.mem_get_info(self._device)
        return GpuReading(int(free), torch.cuda.memory_reserved(self._device))

    def reset_peak(self) -> None:
        torch.cuda.reset_peak_memory_stats(self._device)

    def peak(self) -> int:
        return torch.cuda.max_memory_reserved(self._device)

    def alone(self) -> AbstractContextManager[None]:
        name = torch.cuda.get_device_properties(self._device).uuid
        return locked(Path(tempfile.gettempdir()) / f"pagemesh-{os.getuid()}-gpu-{name}.lock")


@contextmanager
def locked(path: Path, patience: float = _PATIENCE) -> Iterator[None]:
    """Hold a file that one process at a time can hold; it is let go when the process ends, too.

    After `patience` seconds without it, goes on all the same: whoever has it hangs.
    """
    deadline = time.monotonic() + patience
    with path.open("a") as file:
        while not _take(file.fileno()):
            if time.monotonic() > deadline:
                log.warning("another engine loads for too long; not waiting for it", lock=str(path))
                break
            time.sleep(_POLL_SECONDS)
        yield


def _take(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
