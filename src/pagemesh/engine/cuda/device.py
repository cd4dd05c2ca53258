"""Which device computes, and a GPU as an engine is built on it: its streams, its memory, the right to measure it alone."""

from __future__ import annotations

import fcntl
import os
import tempfile
import time
import warnings
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Final, Protocol

import structlog
import torch

from pagemesh.config import CacheConfig, HardwareConfig
from pagemesh.engine.accelerator import Accelerator
from pagemesh.engine.cuda.accelerator import CudaAccelerator
from pagemesh.engine.cuda.failures import failing_at_start
from pagemesh.engine.cuda.ipc import CudaSharing
from pagemesh.engine.cuda.peer_pools import MemorySharing
from pagemesh.engine.cuda.toolchain import check_toolchain
from pagemesh.errors import ConfigError
from pagemesh.models.choices import choose_kv_dtype
from pagemesh.sizing.gpu_budget import GpuReading

log = structlog.get_logger(__name__)

_POLL_SECONDS: Final = 0.1
_PATIENCE: Final = 600.0
"""Seconds to wait for others that load on the same GPU. `pagemesh up` waits longer for its workers."""


_LEAST_CAPABILITY: Final = (8, 0)
"""Ampere's: the kernels load ahead by its asynchronous copies and multiply bfloat16, and older ones can neither."""

_FP8_CAPABILITY: Final = (8, 9)
"""The first compute capability whose instructions convert e4m3 (CUDA C++ Programming Guide); on older
ones Triton compiles no kernel with it."""

_DRIVER_FILE: Final = Path("/dev/nvidiactl")
"""There where NVIDIA's driver is loaded."""


def choose_device(hardware: HardwareConfig, cache: CacheConfig) -> torch.device:
    """The device that is asked for, or the best that there is.

    ConfigError for a GPU where torch sees none or too old a one, and for KV of a type that the device has no
    kernels for.
    """
    capability = None if hardware.device == "cpu" else visible_capability()
    if hardware.device == "cuda" and capability is None:
        raise ConfigError(
            f"--device is 'cuda', but torch sees no GPU on this machine: {why_no_gpu()}"
        )
    if capability is None:
        if hardware.device == "auto" and _DRIVER_FILE.exists():
            log.warning(
                "the CPU computes, beside a GPU that torch does not see", reason=why_no_gpu()
            )
        choose_kv_dtype(cache.kv_cache_dtype, "float32", "cpu")
        return torch.device("cpu")
    if capability < _LEAST_CAPABILITY:
        raise ConfigError(
            f"this machine's GPU has compute capability {capability[0]}.{capability[1]}, but the kernels are for"
            f" {_LEAST_CAPABILITY[0]}.{_LEAST_CAPABILITY[1]} and later; --device cpu does without"
        )
    if cache.kv_cache_dtype != "auto" and capability < _FP8_CAPABILITY:
        raise ConfigError(
            f"--kv-cache-dtype is {cache.kv_cache_dtype!r}, but must be auto on this GPU: it has compute"
            f" capability {capability[0]}.{capability[1]}, and 8-bit floats begin with"
            f" {_FP8_CAPABILITY[0]}.{_FP8_CAPABILITY[1]}"
        )
    return torch.device("cuda", 0)


def visible_capability() -> tuple[int, int] | None:
    """Compute capability of the first GPU that torch sees; None without one."""
    with warnings.catch_warnings():
        # What torch has to say where it sees none, `why_no_gpu` says in a sentence.
        warnings.simplefilter("ignore")
        return torch.cuda.get_device_capability(0) if torch.cuda.is_available() else None


def why_no_gpu() -> str:
    """What keeps torch from seeing one: its own build, the driver, or a variable that hides them all."""
    if torch.version.cuda is None:
        return f"PyTorch {torch.__version__} is built for CPUs alone"
    try:
        torch.cuda.init()  # type: ignore[no-untyped-call]
    except RuntimeError as error:
        # "... is too old (found version 11040). Please update ...", and the like.
        reason = str(error).split(". ")[0].removesuffix(".")
    else:
        reason = "CUDA finds no device"
    hidden = os.environ.get("CUDA_VISIBLE_DEVICES")
    return reason if hidden is None else f"{reason} (CUDA_VISIBLE_DEVICES is {hidden!r})"


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
