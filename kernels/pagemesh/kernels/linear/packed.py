"""Quantised weights: codes of few bits, and what they are multiplied with.

Values are computed in float32 and rounded once to the type of the rows.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from typing import Literal, Self

import torch


@dataclass(frozen=True, slots=True)
class Packed(ABC):
    """What all kinds have in common: rows are the last but one dimension of each of their tensors."""

    dtype: torch.dtype
    """Of the rows that are multiplied with it."""

    @property
    @abstractmethod
    def shape(self) -> torch.Size:
        """Of the matrix [out, in], or of a stack of them [matrices, out, in]."""

    @abstractmethod
    def dense(self) -> torch.Tensor:
        """What it stands for, of its shape and type."""

    @property
    def device(self) -> torch.device:
        return next(iter(self._tensors().values())).device

    @property
    def num_bytes(self) -> int:
        """Of all that is kept of it."""
        return sum(tensor.nbytes for tensor in self._tensors().values())

    def matrix(self, number: int) -> Self:
        """One of a stack; no copy."""
        return self._each(lambda tensor: tensor[number])

    def take_rows(self, order: torch.Tensor) -> Self:
        """A copy with these rows, int64 on the weight's device, in this order."""
        return self._each(lambda tensor: _take_rows(tensor, order))

    def above(self, others: Sequence[object]) -> Self | None:
        """With the rows of others below its own; None if they differ in more than their numbers."""
        tensors = self._tensors()
        stacked = {name: [tensor] for name, tensor in tensors.items()}
        for other in others:
            if not isinstance(other, type(self)):
                return None
            own = other._tensors()
            if own.keys() != tensors.keys() or replace(other, **tensors) != self:
                return None
            for name, tensor in own.items():
                like = tensors[name]
                if tensor.dtype != like.dtype or tensor.shape[-1] != like.shape[-1]:
                    return None
                stacked[name].append(tensor)
        return replace(self, **{name: torch.cat(parts, -2) for name, parts in stacked.items()})

    def _tensors(self) -> dict[str, torch.Tensor]:
        found = {each.name: getattr(self, each.name) for each in fields(self)}
        return {name: value for name, value in found.items() if isinstance(value, torch.Tensor)}

    def _each(self, change: Callable[[torch.Tensor], torch.Tensor]) -> Self:
        return replace(self, **{name: change(each) for name, each in self._tensors().items()})


@dataclass(frozen=True, slots=True)
class GroupInt(Packed):
    """Whole numbers of 4 or 8 bits: scale · (code - centre) - minimum, where a run of inputs shares scale and minimum.

    A scale is a number, or a number times a unit that a run of scales shares (as in llama.cpp's K-quants, whose
    products do not fit a half); a minimum likewise. A zero point is a minimum whose unit is the scale.
    """

    codes: torch.Tensor
    """uint8 [..., out, in], or of 4 bits [..., out, in / 2], an even input's in the lower half of its byte."""

    scales: torch.Tensor
    """[..., out, groups]: float16, bfloat16 or float32; or int8 or uint8, with units."""

    bits: Literal[4, 8]
    group_size: int
    """Inputs that share a scale; divides their number."""

    centre: int = 0
    minimums: torch.Tensor | None = None
    """Like the scales."""

    scale_units: torch.Tensor | None = None
    """[..., out, runs] of floats: each for groups / runs scales."""

    minimum_units: torch.Tensor | None = None

    @property
    def shape(self) -> torch.Size:
        *leading, num_bytes = self.codes.shape
        return torch.Size((*leading, num_bytes * (8 // self.bits)))

    def dense(self) -> torch.Tensor:
        codes = self.codes if self.bits == 8 else unpack_halves(self.codes)
        groups = (codes.float() - self.centre).unflatten(-1, (-1, self.group_size))
        values = groups * _products(self.scales, self.scale_units).unsqueeze(-1)
        if self.minimums is not None:
            values -= _products(self.minimums, self.minimum_units).unsqueeze(-1)
        return values.flatten(-2).to(self.dtype)


@dataclass(frozen=True, slots=True)
class Codebook(Packed):
    """Numbers of a table of 16, times a scale that a run of inputs shares.

    MXFP4 (OCP Microscaling Formats 1.0), NF4 (QLoRA, Dettmers et al. 2023), llama.cpp's IQ4_NL.
    """

    codes: torch.Tensor
    """uint8 [..., out, in / 2], an even input's in the lower half of its byte."""

    scales: torch.Tensor
    """[..., out, groups]: float16, bfloat16 or float32."""

    table: tuple[float, ...]
    """16 numbers, each a float32."""

    group_size: int

    @property
    def shape(self) -> torch.Size:
        *leading, num_bytes = self.codes.shape
        return torch.Size((*leading, 2 * num_bytes))

    def dense(self) -> torch.Tensor:
        table = torch.tensor(self.table, device=self.device)
        groups = table[unpack_halves(self.codes).long()].unflatten(-1, (-1, self.group_size))
        return (groups * self.scales.float().unsqueeze(-1)).flatten(-2).to(self.dtype)


@dataclass(frozen=True, slots=True)
class ScaledFp8(Packed):
    """Floats of 8 bits (e4m3), times the scale of a row or of a run of a row's inputs.

    The scale of a block of 128 × 128 is in each of its rows.
    """

    numbers: torch.Tensor
    """float8_e4m3fn [..., out, in]."""

    scales: torch.Tensor
    """float32 [..., out, runs]."""

    group_size: int
    """Inputs of a run; the last one has what is left."""

    @property
    def shape(self) -> torch.Size:
        return self.numbers.shape

    def dense(self) -> torch.Tensor:
        scales = self.scales.repeat_interleave(self.group_size, -1)[..., : self.shape[-1]]
        return (self.numbers.float() * scales).to(self.dtype)


def unpack_halves(codes: torch.Tensor) -> torch.Tensor:
    """Codes of 4 bits [..., n], two in a byte, as uint8 [..., 2 · n]."""
    return torch.stack((codes & 15, codes >> 4), -1).flatten(-2)


def pack_halves(codes: torch.Tensor) -> torch.Tensor:
    """The way back: uint8 [..., 2 · n] below 16 → [..., n]."""
    even, odd = codes.unflatten(-1, (-1, 2)).unbind(-1)
    return even | odd << 4


def _products(numbers: torch.Tensor, units: torch.Tensor | None) -> torch.Tensor:
    """float32 [..., groups]; exact, where a half is multiplied by 8 bits."""
    values = numbers.float()
    if units is None:
        return values
    runs = values.unflatten(-1, (units.shape[-1], -1))
    return (runs * units.float().unsqueeze(-1)).flatten(-2)


def _take_rows(tensor: torch.Tensor, order: torch.Tensor) -> torch.Tensor:
    if tensor.dtype == torch.float8_e4m3fn:  # of which torch takes no rows
        return tensor.view(torch.uint8).index_select(-2, order).view(tensor.dtype)
    return tensor.index_select(-2, order)
