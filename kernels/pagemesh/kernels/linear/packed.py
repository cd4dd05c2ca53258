"""Quantised weights: codes of few bits, and what they are multiplied with.

Values are computed in float32 and rounded once to the type of the rows. A product is that of what a weight stands for,
but for `ChannelInt8`, and for `ScaledFp8` where rows of activations become floats of 8 bits.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, ClassVar, Literal, Self

import torch


@dataclass(frozen=True, slots=True)
class Packed(ABC):
    """What all kinds have in common: rows are the last but one dimension of each of their tensors."""

    shared: ClassVar[frozenset[str]] = frozenset()
    """Tensors that all rows have in common: one row, in the rows' dimension."""

    dtype: torch.dtype
    """Of the rows that are multiplied with it."""

    @property
    @abstractmethod
    def shape(self) -> torch.Size:
        """Of the matrix [out, in], or of a stack of them [matrices, out, in]."""

    @abstractmethod
    def dense(self) -> torch.Tensor:
        """What it stands for, of its shape and type."""

    @abstractmethod
    def bound(self) -> torch.Tensor:
        """float32, one number that none of its own is farther from 0 than; NaN or infinite if one of them may be."""

    @property
    def device(self) -> torch.device:
        return next(iter(self._tensors().values())).device

    @property
    def num_bytes(self) -> int:
        """Of all that is kept of it."""
        return sum(tensor.nbytes for tensor in self._tensors().values())

    def matrix(self, number: int) -> Self:
        """One of a stack; no copy."""
        return self._with({name: tensor[number] for name, tensor in self._tensors().items()})

    def take_rows(self, order: torch.Tensor) -> Self:
        """A copy with these rows, int64 on the weight's device, in this order."""
        of_rows = {k: each for k, each in self._tensors().items() if k not in self.shared}
        return self._with({name: _take_rows(tensor, order) for name, tensor in of_rows.items()})

    def rows(self, numbers: torch.Tensor) -> torch.Tensor:
        """What rows of a matrix stand for: [T, in] of int64 [T]."""
        return self.take_rows(numbers).dense()

    def moved(self, move: Callable[[torch.Tensor], torch.Tensor]) -> Self:
        """The same numbers, with each of its tensors where `move` puts it."""
        return self._with({name: move(tensor) for name, tensor in self._tensors().items()})

    def above(self, others: Sequence[object]) -> Self | None:
        """With the rows of others below its own; None if they differ in more than their numbers."""
        alike = self._alike(others)
        if alike is None or any(
            not torch.equal(tensor, other._tensors()[name])
            for name, tensor in self._tensors().items()
            if name in self.shared
            for other in alike
        ):
            return None
        return self._joined(alike, lambda tensors: torch.cat(tensors, -2), self.shared)

    def beside(self, others: Sequence[object]) -> Self | None:
        """A stack of matrices of one shape; None if they differ in more than their numbers."""
        alike = self._alike(others)
        if alike is None or any(other.shape != self.shape for other in alike):
            return None
        return self._joined(alike, torch.stack, frozenset())

    def _alike(self, others: Sequence[object]) -> list[Self] | None:
        """All of them, itself first; None unless they differ in numbers and in how many rows there are alone."""
        tensors = self._tensors()
        alike = [self]
        for other in others:
            if not isinstance(other, type(self)):
                return None
            own = other._tensors()
            # With its tensors the other one is equal to it, or differs in what is no tensor.
            if own.keys() != tensors.keys() or other._with(tensors) != self:
                return None
            for name, tensor in own.items():
                like = tensors[name]
                if (tensor.dtype, tensor.shape[-1]) != (like.dtype, like.shape[-1]):
                    return None
            alike.append(other)
        return alike

    def _joined(
        self,
        alike: Sequence[Self],
        join: Callable[[list[torch.Tensor]], torch.Tensor],
        left: frozenset[str],
    ) -> Self:
        moved = {name: each for name, each in self._tensors().items() if name not in left}
        return self._with(
            {
                name: join([_as_bytes(one._tensors()[name]) for one in alike]).view(own.dtype)
                for name, own in moved.items()
            }
        )

    def _tensors(self) -> dict[str, torch.Tensor]:
        found = {each.name: getattr(self, each.name) for each in fields(self)}
        return {name: value for name, value in found.items() if isinstance(value, torch.Tensor)}

    def _with(self, tensors: Mapping[str, Any]) -> Self:
        return replace(self, **tensors)


@dataclass(frozen=True, slots=True)
class GroupInt(Packed):
    """Whole numbers of 4 or 8 bits: scale · (code - zero point) - minimum, where a group of inputs shares all three.

    A scale is a number, or a number times a unit that a run of scales shares (as in llama.cpp's K-quants, whose
    products do not fit a half); a minimum likewise. A group is a run of inputs, or any of them (GPTQ's act-order):
    codes stay in the order of the inputs, which is that of the sums.
    """

    shared: ClassVar[frozenset[str]] = frozenset({"input_groups"})

    codes: torch.Tensor
    """uint8 [..., out, in], or of 4 bits [..., out, in / 2], an even input's in the lower half of its byte."""

    scales: torch.Tensor
    """[..., out, groups]: float16, bfloat16 or float32; or int8 or uint8, with units."""

    bits: Literal[4, 8]
    group_size: int
    """Inputs that share a scale; divides their number."""

    centre: int = 0
    """The zero point of all groups."""

    zero_points: torch.Tensor | None = None
    """uint8 [..., out, groups], in the place of the centre."""

    minimums: torch.Tensor | None = None
    """Like the scales."""

    scale_units: torch.Tensor | None = None
    """[..., out, runs] of floats: each for groups / runs scales."""

    minimum_units: torch.Tensor | None = None

    input_groups: torch.Tensor | None = None
    """int32 [..., 1, in]: the group of each input, where groups are not runs in a row."""

    @property
    def shape(self) -> torch.Size:
        *leading, num_bytes = self.codes.shape
        return torch.Size((*leading, num_bytes * (8 // self.bits)))

    def dense(self) -> torch.Tensor:
        codes = (self.codes if self.bits == 8 else unpack_halves(self.codes)).float()
        # A view, group by group, which broadcasts what each of them shares.
        grouped = codes if self.input_groups is not None else _in_groups(codes, self.group_size)
        grouped -= self.centre if self.zero_points is None else self._of_inputs(self.zero_points)
        grouped *= self._of_inputs(_products(self.scales, self.scale_units))
        if self.minimums is not None:
            grouped -= self._of_inputs(_products(self.minimums, self.minimum_units))
        return codes.to(self.dtype)

    def bound(self) -> torch.Tensor:
        farthest = (1 << self.bits) - 1
        if self.zero_points is None:
            farthest = max(self.centre, farthest - self.centre)
        bound = _products(self.scales, self.scale_units).abs().amax() * farthest
        if self.minimums is not None:
            bound = bound + _products(self.minimums, self.minimum_units).abs().amax()
        return bound

    def _of_inputs(self, of_groups: torch.Tensor) -> torch.Tensor:
        """[..., out, in] of [..., out, groups], float32; [..., out, groups, 1] where groups are runs of inputs."""
        if self.input_groups is None:
            return of_groups.float().unsqueeze(-1)
        return of_groups.float().gather(-1, self.input_groups.long().expand(self.shape))


@dataclass(frozen=True, slots=True)
class Codebook(Packed):
    """Numbers of a table of 16, times a scale that a run of inputs shares.

    MXFP4 (OCP Microscaling Formats 1.0), NF4 (QLoRA, Dettmers et al. 2023), llama.cpp's IQ4_NL.
    """

    codes: torch.Tensor
    """uint8 [..., out, in / 2], an even input's in the lower half of its byte."""

    scales: torch.Tensor
    """[..., out, groups]: float16, bfloat16, float32, or float8_e8m0fnu, powers of two."""

    table: tuple[float, ...]
    """16 numbers, each a float32."""

    group_size: int
    """Inputs that share a scale; divides their number."""

    @property
    def shape(self) -> torch.Size:
        *leading, num_bytes = self.codes.shape
        return torch.Size((*leading, 2 * num_bytes))

    def dense(self) -> torch.Tensor:
        table = torch.tensor(self.table, device=self.device)
        numbers = table[unpack_halves(self.codes).int()]
        _in_groups(numbers, self.group_size).mul_(self.scales.float().unsqueeze(-1))
        return numbers.to(self.dtype)

    def bound(self) -> torch.Tensor:
        # Python's own max may lose a NaN.
        return self.scales.float().abs().amax() * float(torch.tensor(self.table).abs().amax())


@dataclass(frozen=True, slots=True)
class ScaledFp8(Packed):
    """Floats of 8 bits (e4m3), times the scale of a row or of a run of a row's inputs.

    The scale of a block of 128 × 128 is in each of its rows. Where `row_group` is set the checkpoint was made for rows of
    activations that become such floats too. With units for them a product then takes its rows so: the scale of a run of
    `row_group` inputs is the largest distance of its numbers from 0, over 448, or the checkpoint's own; its codes are
    its numbers times 448 over that distance, or times 1 over the checkpoint's scale, within -448 and 448, rounded to the
    nearest e4m3, to an even one half way. Runs without anything as large as 2^-100, and those with a NaN or an infinity,
    are as with `ChannelInt8`.
    """

    numbers: torch.Tensor
    """float8_e4m3fn [..., out, in]."""

    scales: torch.Tensor
    """float32 [..., out, runs]."""

    group_size: int
    """Inputs of a run; the last one has what is left."""

    row_group: int | None = None
    """Inputs of a row of activations that share a scale; None where activations stay as they are."""

    input_scales: torch.Tensor | None = None
    """float32 [..., out, 1], of all rows of activations: a product takes the largest of its own; None where each row has
    scales of its own."""

    @property
    def shape(self) -> torch.Size:
        return self.numbers.shape

    def dense(self) -> torch.Tensor:
        scales = self.scales.repeat_interleave(self.group_size, -1)[..., : self.shape[-1]]
        return (self.numbers.float() * scales).to(self.dtype)

    def bound(self) -> torch.Tensor:
        has_nan = ((self.numbers.view(torch.uint8) & 0x7F) == 0x7F).any()
        largest = self.scales.abs().amax() * torch.finfo(torch.float8_e4m3fn).max
        return torch.where(has_nan, torch.nan, largest)


@dataclass(frozen=True, slots=True)
class ChannelInt8(Packed):
    """Whole numbers of 8 bits times the scale of a row, for rows of activations that become such numbers too (W8A8).

    Alone it stands for `dense()`. A product is defined by the whole numbers of both sides, not by that: the scale of a
    row of activations is the largest distance of its numbers from 0, over 127, or the checkpoint's own; its codes are
    its numbers times 127 over that distance, or times 1 over the checkpoint's scale, rounded to even where they are
    half way, within -128 and 127. The exact sum of the products of codes is rounded to float32, and multiplied with
    the product of both scales. All of it is float32, each operation rounded once. A row with nothing as large as
    2^-100 counts as zeros; of one with a NaN or an infinity all outputs are NaN, with the checkpoint's scale too.
    """

    shared: ClassVar[frozenset[str]] = frozenset({"input_scale"})

    codes: torch.Tensor
    """int8 [..., out, in]."""

    scales: torch.Tensor
    """float32 [..., out, 1]."""

    input_scale: torch.Tensor | None = None
    """float32 [..., 1, 1], of all rows of activations; None where each has its own."""

    most_inputs: ClassVar[int] = (1 << 17) - 1
    """Whose products, of at most 2^14, surely have a sum that fits an int32."""

    @property
    def shape(self) -> torch.Size:
        return self.codes.shape

    def dense(self) -> torch.Tensor:
        return (self.codes.float() * self.scales).to(self.dtype)

    def bound(self) -> torch.Tensor:
        return self.scales.abs().amax() * 128


def unpack_halves(codes: torch.Tensor) -> torch.Tensor:
    """Codes of 4 bits [..., n], two in a byte, as uint8 [..., 2 · n]."""
    return torch.stack((codes & 15, codes >> 4), -1).flatten(-2)


def pack_halves(codes: torch.Tensor) -> torch.Tensor:
    """The way back: uint8 [..., 2 · n] below 16 → [..., n]."""
    return codes[..., ::2] | codes[..., 1::2] << 4


def _in_groups(numbers: torch.Tensor, group_size: int) -> torch.Tensor:
    """[..., out, groups, inputs of a group] of [..., out, in]; no copy."""
    return numbers.view(*numbers.shape[:-1], -1, group_size)


def _products(numbers: torch.Tensor, units: torch.Tensor | None) -> torch.Tensor:
    """float32 [..., groups]; exact, where a half is multiplied by 8 bits."""
    values = numbers.float()
    if units is None:
        return values
    return values * units.float().repeat_interleave(values.shape[-1] // units.shape[-1], -1)


def _take_rows(tensor: torch.Tensor, order: torch.Tensor) -> torch.Tensor:
    return _as_bytes(tensor).index_select(-2, order).view(tensor.dtype)


def _as_bytes(tensor: torch.Tensor) -> torch.Tensor:
    """Floats of 8 bits as bytes: with those torch does whatever moves numbers, on every device."""
    return tensor.view(torch.uint8) if tensor.dtype.itemsize == 1 else tensor
