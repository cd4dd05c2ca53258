"""What the machine can do at best, measured in the same run as what is compared with it."""

from __future__ import annotations

import statistics
from functools import partial
from typing import Final, NamedTuple

import torch
from contest import Contest
from stopwatch import times


class Limits(NamedTuple):
    """Of a device."""

    bytes_per_s: float
    """Read and written together, by torch's copy of more than any cache holds."""

    flops_per_s: float
    """By torch's product of large square matrices of bfloat16, or of float32 where that is faster: on processors
    without instructions for bfloat16 torch multiplies it element by element."""

    def seconds(self, contest: Contest) -> float:
        """The least time of a contest: that of its bytes or of its arithmetic, whichever is more."""
        return max(contest.num_bytes / self.bytes_per_s, contest.num_flops / self.flops_per_s)


def measure_limits(device: torch.device, *, quick: bool) -> Limits:
    """The median of some copies and products."""
    on_gpu = device.type == "cuda"
    num_bytes = 1 << (32 if on_gpu else 28)
    source = torch.zeros(num_bytes, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    size = 8192 if on_gpu else 2048
    left, right = torch.randn(2, size, size, device=device).to(_faster_type(device)).unbind()
    taken = times(
        {"copy": lambda: target.copy_(source), "product": lambda: left @ right},
        device,
        5 if quick else 20,
    )
    copy, product = (statistics.median(taken[name]) * 1e-6 for name in ("copy", "product"))
    return Limits(2 * num_bytes / copy, 2 * size**3 / product)


def _faster_type(device: torch.device) -> torch.dtype:
    small = {dtype: torch.randn(256, 256, device=device).to(dtype) for dtype in _TYPES}
    runs = {str(dtype): partial(torch.matmul, each, each) for dtype, each in small.items()}
    taken = times(runs, device, 3)
    return min(_TYPES, key=lambda dtype: statistics.median(taken[str(dtype)]))


_TYPES: Final = (torch.bfloat16, torch.float32)
