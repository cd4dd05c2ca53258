"""Starts Triton kernels, or notes what would have been started.

Products and sums are never fused into one rounding, except where a kernel says so: a kernel is compiled
anew for every kind of argument (an integer that is 1 is a constant), and each time the compiler would
fuse as it likes, so that the same row might get other bits in another batch.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final, NamedTuple

import torch
import triton
import triton.language as tl
from triton.runtime.jit import JITFunction

from pagemesh.kernels.starting import start
from pagemesh.kernels.target import target_of

_EARLY_CAPABILITY: Final = 90
"""From which on kernels can start early: Hopper's."""

_notes: list[list[Launch]] = []


class Launch(NamedTuple):
    """One start of a kernel."""

    kernel: Any
    """What `triton.jit` made."""

    grid: tuple[int, ...]
    """Programs in each direction."""

    arguments: Mapping[str, object]
    """By the kernel's own names, constants included."""

    options: Mapping[str, int | bool]
    """num_warps, num_stages, enable_fp_fusion, and launch_pdl of kernels that overlap."""


def launch(
    kernel: Any,
    grid: tuple[int, ...],
    arguments: Mapping[str, object],
    *,
    num_warps: int = 4,
    num_stages: int = 3,
    fuses: bool = False,
    overlaps: bool = False,
) -> None:
    """Start a kernel with arguments by its own names, constants included.

    An empty grid starts nothing. Tensors are on the current device, whose current stream runs it. A kernel that
    `overlaps` is told by EARLY whether it has to wait for those before it, see `early_start`.
    """
    options = {"num_warps": num_warps, "num_stages": num_stages, "enable_fp_fusion": fuses}
    if overlaps:
        is_early = isinstance(kernel, JITFunction) and _starts_early(arguments)
        arguments = {**arguments, "EARLY": is_early}
        options["launch_pdl"] = is_early
    if _notes:
        _notes[-1].append(Launch(kernel, grid, dict(arguments), dict(options)))
    elif all(grid):
        start(kernel, grid, arguments, options)


@contextmanager
def noting() -> Iterator[list[Launch]]:
    """Start nothing, but note what would be started; tensors may then be on torch's meta device."""
    notes: list[Launch] = []
    _notes.append(notes)
    try:
        yield notes
    finally:
        _notes.pop()


def _starts_early(arguments: Mapping[str, object]) -> bool:
    device = next(each.device for each in arguments.values() if isinstance(each, torch.Tensor))
    return target_of(device).capability >= _EARLY_CAPABILITY


def is_interpreted() -> bool:
    """Whether kernels run in Triton's interpreter (TRITON_INTERPRET=1), slowly, on tensors of the CPU."""
    return bool(triton.knobs.runtime.interpret)


def dot_type(dtype: torch.dtype) -> tl.dtype:
    """The type in which `tl.dot` should have operands that are stored as `dtype`.

    The interpreter takes bfloat16 for 16-bit integers: there it is float32.
    """
    if is_interpreted() or dtype == torch.float32:
        return tl.float32
    return {torch.bfloat16: tl.bfloat16, torch.float16: tl.float16}[dtype]
