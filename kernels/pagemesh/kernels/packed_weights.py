"""Where weights lie once they are packed: in this process's memory, or in memory that processes share."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

import torch

Share = Callable[[memoryview], memoryview | None]
"""Gives the same bytes elsewhere, to be read only; None when they stay where they are."""


@contextmanager
def packing_into(share: Share) -> Iterator[None]:
    """Weights that are packed meanwhile, by whichever kernel, go where `share` says."""
    _shares.append(share)
    try:
        yield
    finally:
        _shares.pop()


def place_packed(weight: torch.Tensor) -> torch.Tensor:
    """The weight, which nothing writes to any more, where it stays; drop the original. On a GPU it is there already."""
    if not _shares or weight.is_cuda or not weight.is_contiguous():
        return weight
    # .data: a memoryview over the same memory.
    shared = _shares[-1](weight.view(-1).view(torch.uint8).numpy().data)
    if shared is None:
        return weight
    with warnings.catch_warnings():
        # torch knows no tensors that cannot be written to.
        warnings.filterwarnings("ignore", message="The given buffer is not writable")
        return torch.frombuffer(shared, dtype=weight.dtype).view(weight.shape)


_shares: Final[list[Share]] = []
