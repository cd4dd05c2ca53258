"""What a kernel needs of the device it runs on: facts for the choice of tiles, scratch memory, counters of arrivals."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from contextlib import contextmanager
from math import prod
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


class Scratch:
    """Tensors by name; each is overwritten by the next one of that name."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._tensors: dict[str, torch.Tensor] = {}

    def take(self, name: str, dtype: torch.dtype, *shape: int) -> torch.Tensor:
        """A dense tensor whose content is whatever is there. One name has one type."""
        size = prod(shape)
        tensor = self._tensors.get(name)
        if tensor is None or tensor.numel() < size:
            # A little more each time would leave many small pieces behind, which no allocator joins.
            grown = 1 << max(size - 1, 0).bit_length()
            tensor = self._tensors[name] = torch.empty(grown, dtype=dtype, device=self._device)
        return tensor[:size].view(shape)


NUM_COUNTERS: Final = 1024
"""Most programs of one kernel, or groups of them, that count arrivals."""

_of_streams: dict[tuple[torch.device, int], torch.Tensor] = {}


def arrival_counters(device: torch.device) -> torch.Tensor:
    """The counters of the current stream, int32 [NUM_COUNTERS]: zeros whenever none of its kernels runs.

    A kernel that uses them leaves zeros again. A graph that is captured on a stream without any has
    counters of its own in it, which it sets to zero itself.
    """
    stream = torch.cuda.current_stream(device).cuda_stream if device.type == "cuda" else 0
    counters = _of_streams.get((device, stream))
    if counters is None:
        counters = torch.zeros(NUM_COUNTERS, dtype=torch.int32, device=device)
        # What is recorded into a graph is not zero before the graph runs.
        if device.type != "cuda" or not torch.cuda.is_current_stream_capturing():
            _of_streams[device, stream] = counters
    return counters
