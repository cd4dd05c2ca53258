"""How busy a worker's GPU is and how full its memory, as NVIDIA's management library (NVML) says of the device.

That is the whole device, whoever uses it. Where there is no such library, or the worker computes on the CPU, there
are no such metrics.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable, Iterator, Mapping
from typing import Final

from pagemesh.config import HardwareConfig
from pagemesh.telemetry.metrics import Metrics
from pagemesh.telemetry.metrics import engine as declared
from pagemesh.telemetry.metrics.registry import Reading

_LIBRARY: Final = "libnvidia-ml.so.1"
_UUID_BYTES: Final = 96


class _Utilization(ctypes.Structure):
    _fields_ = (("gpu", ctypes.c_uint), ("memory", ctypes.c_uint))


class _Memory(ctypes.Structure):
    _fields_ = (
        ("total", ctypes.c_ulonglong),
        ("free", ctypes.c_ulonglong),
        ("used", ctypes.c_ulonglong),
    )


def show_gpu(
    metrics: Metrics,
    model_name: str,
    hardware: HardwareConfig,
    environment: Mapping[str, str] = os.environ,
    library: str = _LIBRARY,
) -> None:
    """Have a worker's pages show its GPU, if there is one and the library."""
    gpu = None if hardware.device == "cpu" else Gpu.find(environment, library)
    if gpu is not None:
        for spec, read in (
            (declared.GPU_UTILIZATION, gpu.utilization),
            (declared.GPU_MEMORY_USED, gpu.used_bytes),
            (declared.GPU_MEMORY, gpu.total_bytes),
        ):
            metrics.read_at_scrape(spec, _series((model_name, gpu.uuid), read))


def _series(
    labels: tuple[str, str], read: Callable[[], float | None]
) -> Callable[[], Iterator[Reading]]:
    def readings() -> Iterator[Reading]:
        number = read()
        if number is not None:
            yield labels, number

    return readings


class Gpu:
    """One device. What the driver does not say, of a part of a GPU (MIG) its use, is None."""

    def __init__(self, nvml: ctypes.CDLL, handle: ctypes.c_void_p, uuid: str) -> None:
        self._nvml = nvml
        self._handle = handle
        self.uuid = uuid

    @classmethod
    def find(cls, environment: Mapping[str, str], library: str) -> Gpu | None:
        """The first that CUDA shows to this process; of several, CUDA_VISIBLE_DEVICES names it."""
        name = environment.get("CUDA_VISIBLE_DEVICES", "0").split(",")[0].strip()
        handle, uuid = ctypes.c_void_p(), ctypes.create_string_buffer(_UUID_BYTES)
        try:
            nvml = ctypes.CDLL(library)
            # 0 is success.
            if nvml.nvmlInit_v2() != 0:
                return None
            if name.isdecimal():
                found = nvml.nvmlDeviceGetHandleByIndex_v2(int(name), ctypes.byref(handle))
            else:
                found = nvml.nvmlDeviceGetHandleByUUID(name.encode(), ctypes.byref(handle))
            if found != 0 or nvml.nvmlDeviceGetUUID(handle, uuid, _UUID_BYTES) != 0:
                return None
        except (OSError, AttributeError):
            return None
        return cls(nvml, handle, uuid.value.decode())

    def utilization(self) -> float | None:
        """Share of the last moments in which it computed something."""
        read = _Utilization()
        failed = self._nvml.nvmlDeviceGetUtilizationRates(self._handle, ctypes.byref(read))
        return None if failed else read.gpu / 100

    def used_bytes(self) -> float | None:
        """Of its memory."""
        memory = self._memory()
        return None if memory is None else float(memory.used)

    def total_bytes(self) -> float | None:
        """Of its memory."""
        memory = self._memory()
        return None if memory is None else float(memory.total)

    def _memory(self) -> _Memory | None:
        read = _Memory()
        failed = self._nvml.nvmlDeviceGetMemoryInfo(self._handle, ctypes.byref(read))
        return None if failed else read
