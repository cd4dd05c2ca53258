"""Several tensors in one piece of memory, so that they move to the host by one copy."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod
from typing import Final, NamedTuple

import torch

_ALIGNMENT: Final = 16
"""Of every part, in bytes: what the widest accesses of a device need."""


class Part(NamedTuple):
    """A tensor to be packed."""

    dtype: torch.dtype
    shape: tuple[int, ...]


class Packing:
    """Where each of several parts lies."""

    def __init__(self, parts: Mapping[str, Part]) -> None:
        self._places: dict[str, tuple[Part, int, int]] = {}
        self.num_bytes = 0
        """Of all of them together."""
        for name, part in parts.items():
            end = self.num_bytes + part.dtype.itemsize * prod(part.shape)
            self._places[name] = part, self.num_bytes, end
            self.num_bytes = -(-end // _ALIGNMENT) * _ALIGNMENT

    def views(self, memory: torch.Tensor) -> dict[str, torch.Tensor]:
        """The parts within uint8 [num_bytes], by name."""
        return {
            name: memory[begin:end].view(part.dtype).view(part.shape)
            for name, (part, begin, end) in self._places.items()
        }
