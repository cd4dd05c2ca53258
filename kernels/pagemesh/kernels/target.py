"""What a kernel needs to know of the device it runs on, for the choice of its tiles."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final, NamedTuple

import torch
import triton


class Target(NamedTuple):
    """One kind of NVIDIA GPU."""

    capability: int
    """Compute capability, major · 10 + minor: 80 (A100), 86 (RTX 3090), 89 (RTX 4090), 90 (H100, H200), 100 (B200)."""

    num_multiprocessors: int

    shared_bytes: int
    """Most shared memory of one program; Triton does not refuse more, the launch fails."""


TARGETS: Final = {
    80: Target(80, 108, 166_912),
    86: Target(86, 82, 101_376),
    89: Target(89, 128, 101_376),
    90: Target(90, 132, 232_448),
    100: Target(100, 148, 232_448),
}
"""Those for which all kernels are compiled ahead of time (CUDA C++ Programming Guide, compute
capabilities)."""

_played = [TARGETS[90]]


def target_of(device: torch.device) -> Target:
    """The target that a device is; for tensors that are on no GPU, the one that is played."""
    return _inquire(device) if device.type == "cuda" else _played[-1]


@contextmanager
def playing(target: Target) -> Iterator[None]:
    """Choose tiles as for this target meanwhile, where there is no GPU."""
    _played.append(target)
    try:
        yield
    finally:
        _played.pop()


@functools.cache
def _inquire(device: torch.device) -> Target:
    properties = torch.cuda.get_device_properties(device)
    limits = triton.runtime.driver.active.utils.get_device_properties(device.index or 0)
    return Target(
        10 * properties.major + properties.minor,
        properties.multi_processor_count,
        limits["max_shared_mem"],
    )
