"""A GPU as an engine is built on it: its streams, its memory, the right to measure it alone, and what compiles for it.

Triton compiles kernels itself, but what starts them is C, which it gives to the machine's compiler when the first
kernel starts: after the weights have been loaded, and in the words of that compiler.
"""

from __future__ import annotations

import fcntl
import importlib.util
import os
import re
import shutil
import subprocess
import sysconfig
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
from pagemesh.errors import ConfigError
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


_COMPILERS: Final = ("gcc", "clang")
"""Those that Triton looks for, in its order, where CC names none."""

_NO_HEADERS: Final = re.compile("error: '?Python.h")
"""How gcc and clang say it. Where a header that Python.h includes is missing, its name stands in front of that."""

_SECONDS: Final = 60.0
"""For a compiler to read the headers, which takes a fraction of one unless the machine is very busy."""

_CPU_INSTEAD: Final = "; --device cpu does without"


def check_toolchain() -> None:
    """ConfigError that names what is missing, and what to install."""
    if importlib.util.find_spec("triton") is None:
        raise ConfigError(
            "the kernels for this machine's GPU need Triton, which is not installed: pip install 'pagemesh[gpu]'"
            f" on Linux{_CPU_INSTEAD}"
        )
    compiler = _find_compiler()
    fault = _read_headers(compiler)
    if fault is None:
        return
    if _NO_HEADERS.search(fault):
        raise ConfigError(
            f"Triton needs Python's headers, but {compiler} finds no Python.h in {_include_folder()}: install them"
            f" (Debian and Ubuntu: apt-get install python3-dev){_CPU_INSTEAD}"
        )
    raise ConfigError(
        f"Triton needs a C compiler that works, but {compiler} says {fault!r}: install what it misses (Debian and"
        f" Ubuntu: apt-get install gcc libc6-dev){_CPU_INSTEAD}"
    )


def _find_compiler() -> str:
    named = os.environ.get("CC")
    found = next(filter(None, map(shutil.which, _COMPILERS if named is None else (named,))), None)
    if found is not None:
        return found
    missing = (
        "finds neither gcc nor clang" if named is None else f"CC is {named!r}, which is no program"
    )
    raise ConfigError(
        f"Triton needs a C compiler, but {missing}: install one (Debian and Ubuntu: apt-get install gcc libc6-dev), or"
        f" name one in CC{_CPU_INSTEAD}"
    )


def _read_headers(compiler: str) -> str | None:
    """The compiler's first complaint about Python's headers and those of the C library, which they include."""
    command = [compiler, "-fsyntax-only", f"-I{_include_folder()}", "-x", "c", "-"]
    try:
        compiled = subprocess.run(
            command,
            input="#include <Python.h>\n",
            env=os.environ | {"LC_ALL": "C"},
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_SECONDS,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    if compiled.returncode == 0:
        return None
    lines = compiled.stderr.splitlines()
    return next((line for line in lines if "error" in line), f"exit status {compiled.returncode}")


def _include_folder() -> str:
    scheme = sysconfig.get_default_scheme()
    # Debian's own scheme is for what is installed beside its packages; the headers are one of them.
    return sysconfig.get_path("include", "posix_prefix" if scheme == "posix_local" else scheme)
