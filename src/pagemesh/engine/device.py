"""Which device an engine computes on, and whether it can do what is asked of it."""

from __future__ import annotations

from typing import Final

import torch

from pagemesh.config import CacheConfig, HardwareConfig
from pagemesh.errors import ConfigError
from pagemesh.models.choices import choose_kv_dtype

_FP8_CAPABILITY: Final = (8, 9)
"""The first compute capability whose instructions convert e4m3 (CUDA C++ Programming Guide); on older
ones Triton compiles no kernel with it."""


def choose_device(hardware: HardwareConfig, cache: CacheConfig) -> torch.device:
    """The device that is asked for, or the best that there is.

    ConfigError for a GPU where torch sees none, and for KV of a type that the device has no kernels for.
    """
    capability = None if hardware.device == "cpu" else visible_capability()
    if hardware.device == "cuda" and capability is None:
        raise ConfigError("--device is 'cuda', but torch sees no GPU on this machine")
    if capability is None:
        choose_kv_dtype(cache.kv_cache_dtype, "float32", "cpu")
        return torch.device("cpu")
    if cache.kv_cache_dtype != "auto" and capability < _FP8_CAPABILITY:
        raise ConfigError(
            f"--kv-cache-dtype is {cache.kv_cache_dtype!r}, but must be auto on this GPU: it has compute"
            f" capability {capability[0]}.{capability[1]}, and 8-bit floats begin with"
            f" {_FP8_CAPABILITY[0]}.{_FP8_CAPABILITY[1]}"
        )
    return torch.device("cuda", 0)


def visible_capability() -> tuple[int, int] | None:
    """Compute capability of the first GPU that torch sees; None without one."""
    return torch.cuda.get_device_capability(0) if torch.cuda.is_available() else None
