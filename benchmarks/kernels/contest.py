"""What an entry measures: one operation at one size, ours and others', beside the least it could take."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final, Protocol

import torch

Run = Callable[[], object]

LEAST_US: Final = 50.0
"""On a GPU a shorter least time says nothing about an aim: the launch of a kernel takes a few microseconds."""


@dataclass(frozen=True)
class Contest:
    """An operation at one size."""

    name: str

    num_bytes: float
    """That must be read or written at least, each once."""

    num_flops: float
    """Multiplications and additions, each one."""

    runs: Mapping[str, Run]
    """What is timed, by whose it is; "ours" is among them."""

    aim: float | None = None
    """Share of the limit that ours should reach."""

    least_speedup: float | None = None
    """Times that ours should be faster than the best of the others."""

    def aim_for(self, least_us: float, *, on_gpu: bool) -> float | None:
        """The aim, where so short a least time allows one."""
        return None if on_gpu and least_us < LEAST_US else self.aim


class Entry(Protocol):
    """The contests of one operation on a device."""

    def __call__(self, device: torch.device, *, quick: bool) -> Iterator[Contest]:
        """Made one by one: the tensors of one may go when the next is asked for."""
        ...
