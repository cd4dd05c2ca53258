"""GPU use and memory are what the driver's library says, and absent where it says nothing."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Mapping
from pathlib import Path

import pytest

from pagemesh.config import HardwareConfig
from pagemesh.telemetry.metrics import Metrics
from pagemesh.worker.gpu_metrics import show_gpu

NVML = """
#include <stdio.h>
#include <string.h>
typedef struct { unsigned gpu, memory; } use_t;
typedef struct { unsigned long long total, free, used; } memory_t;
static const char *names[] = {"GPU-a", "GPU-b", "MIG-c"};
int nvmlInit_v2(void) { return 0; }
int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **device) {
  *device = (void *)(names + index);
  return index < 3 ? 0 : 2;
}
int nvmlDeviceGetHandleByUUID(const char *name, void **device) {
  for (unsigned i = 0; i < 3; i++)
    if (!strcmp(name, names[i])) return nvmlDeviceGetHandleByIndex_v2(i, device);
  return 6;
}
int nvmlDeviceGetUUID(void *device, char *name, unsigned length) {
  snprintf(name, length, "%s", *(const char **)device);
  return 0;
}
int nvmlDeviceGetUtilizationRates(void *device, use_t *use) {
  use->gpu = 37;
  return (*(const char **)device)[0] == 'M' ? 3 : 0;
}
int nvmlDeviceGetMemoryInfo(void *device, memory_t *memory) {
  memory->total = 80ULL << 30;
  memory->used = 60ULL << 30;
  return 0;
}
"""
GIB = 2**30
AUTO = HardwareConfig()


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("nvml")
    (folder / "nvml.c").write_text(NVML)
    command = ["cc", "-shared", "-fPIC", "-o", "nvml.so", "nvml.c"]
    subprocess.run(command, check=True, cwd=folder)
    return folder / "nvml.so"


def shown(
    library: str, environment: Mapping[str, str], hardware: HardwareConfig = AUTO
) -> dict[str, float]:
    """Values by name and GPU."""
    metrics = Metrics()
    show_gpu(metrics, "demo", hardware, environment, library)
    found = re.findall(
        r'^pagemesh:(gpu_\w+{gpu="[^"]+"),model_name="demo"} (\S+)$', metrics.page().decode(), re.M
    )
    return {f"{name}}}": float(number) for name, number in found}


@pytest.mark.needs("compiler")  # of a library to ask
@pytest.mark.parametrize(
    ("environment", "gpu"),
    [
        ({}, "GPU-a"),
        ({"CUDA_VISIBLE_DEVICES": "1,0"}, "GPU-b"),
        ({"CUDA_VISIBLE_DEVICES": "GPU-b"}, "GPU-b"),
    ],
    ids=["the only one", "by number", "by name"],
)
def test_the_gpu_is_the_first_that_cuda_shows(
    library: Path, environment: dict[str, str], gpu: str
) -> None:
    assert shown(str(library), environment) == {
        f'gpu_utilization{{gpu="{gpu}"}}': 0.37,
        f'gpu_memory_used_bytes{{gpu="{gpu}"}}': 60 * GIB,
        f'gpu_memory_bytes{{gpu="{gpu}"}}': 80 * GIB,
    }


@pytest.mark.needs("compiler")  # of a library to ask
def test_what_the_driver_does_not_say_is_absent(library: Path) -> None:
    assert shown(str(library), {"CUDA_VISIBLE_DEVICES": "MIG-c"}).keys() == {
        'gpu_memory_used_bytes{gpu="MIG-c"}',
        'gpu_memory_bytes{gpu="MIG-c"}',
    }
    for hidden in ("", "7", "GPU-none"):
        assert shown(str(library), {"CUDA_VISIBLE_DEVICES": hidden}) == {}
    assert shown(str(library), {}, HardwareConfig("cpu")) == {}


def test_without_the_library_there_is_nothing() -> None:
    assert shown("libpagemesh-none.so", {}) == {}
    # A library, but not this one.
    assert shown("libc.so.6", {}) == {}
