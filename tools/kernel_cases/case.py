"""What a case is: a call of an operation on tensors that have a shape but no memory."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch


class Case(NamedTuple):
    """One way to start an operation's kernels that models need."""

    name: str
    """What is particular about it, unique within the operation."""

    run: Callable[[], object]
    """Starts the kernels."""


def meta(*shape: int, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
    """A tensor of torch's meta device."""
    return torch.empty(shape, dtype=dtype, device="meta")
