"""Which device an engine computes on, and whether it can do what is asked of it."""

from __future__ import annotations

import os
import warnings
from pathlib import Path
from typing import Final

import structlog
import torch

from pagemesh.config import CacheConfig, HardwareConfig
from pagemesh.errors import ConfigError
from pagemesh.models.choices import choose_kv_dtype

log = structlog.get_logger(__name__)

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
