"""Weights as models hand them to kernels: what a checkpoint has of a matrix, by the kind of its numbers.

Models read weights, put their rows in order and pass them on; only the functions that choose an implementation know
the kinds. Another kind is a class of its own, here or in `packed.py`, in the union `Weight`, with the members that
models use. A product is that of `dense()`, in the order of sums of dense products, but for `ChannelInt8`, and for
`ScaledFp8` where rows of activations become floats of 8 bits.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import torch
from torch.nn import functional

from pagemesh.errors import ConfigError
from pagemesh.kernels.linear.packed import ChannelInt8, Codebook, GroupInt, ScaledFp8


@dataclass(frozen=True, slots=True)
class Dense:
    """A number for each input and output, in the type in which rows are multiplied."""

    tensor: torch.Tensor
    """[out, in], or of stacked matrices [matrices, out, in]."""

    @property
    def shape(self) -> torch.Size:
        """Of the matrix, or of the stack, whatever it is kept in."""
        return self.tensor.shape

    @property
    def dtype(self) -> torch.dtype:
        """Of the rows that are multiplied with it."""
        return self.tensor.dtype

    @property
    def device(self) -> torch.device:
        return self.tensor.device

    @property
    def num_bytes(self) -> int:
        """Of all that is kept of it."""
        return self.tensor.nbytes

    def dense(self) -> torch.Tensor:
        """What it stands for, of its shape and type."""
        return self.tensor

    def matrix(self, number: int) -> Dense:
        """One of a stack; no copy."""
        return Dense(self.tensor[number])

    def take_rows(self, order: torch.Tensor) -> Dense:
        """A copy with these rows, int64 on the weight's device, in this order."""
        return Dense(self.tensor.index_select(-2, order))

    def rows(self, numbers: torch.Tensor) -> torch.Tensor:
        """What rows of a matrix stand for: [T, in] of int64 [T]."""
        return functional.embedding(numbers, self.tensor)

    def moved(self, move: Callable[[torch.Tensor], torch.Tensor]) -> Dense:
        """The same numbers, with each of its tensors where `move` puts it."""
        return Dense(move(self.tensor))


Quantised: TypeAlias = GroupInt | Codebook | ScaledFp8 | ChannelInt8
"""Of one kind of `Packed`."""

Plain: TypeAlias = Dense | Quantised
"""Of one kind from the first row to the last."""


@dataclass(frozen=True, slots=True)
class RowStack:
    """Weights of different kinds, one below the other: of a checkpoint that gives more bits to values than to queries."""

    parts: tuple[Plain, ...]
    """[..., rows, in] each, of one type and device; at least two."""

    @property
    def shape(self) -> torch.Size:
        *leading, _, num_inputs = self.parts[0].shape
        return torch.Size((*leading, sum(part.shape[-2] for part in self.parts), num_inputs))

    @property
    def dtype(self) -> torch.dtype:
        return self.parts[0].dtype

    @property
    def device(self) -> torch.device:
        return self.parts[0].device

    @property
    def num_bytes(self) -> int:
        return sum(part.num_bytes for part in self.parts)

    def dense(self) -> torch.Tensor:
        return torch.cat([part.dense() for part in self.parts], -2)

    def matrix(self, number: int) -> RowStack:
        """One of a stack; no copy."""
        return RowStack(tuple(part.matrix(number) for part in self.parts))

    def take_rows(self, order: torch.Tensor) -> RowStack:
        """A copy with the rows of each part in another order; ValueError for one that mixes parts."""
        parts: list[Plain] = []
        begin = 0
        for part in self.parts:
            own = order[begin : begin + part.shape[-2]] - begin
            if own.numel() and not (0 <= int(own.min()) <= int(own.max()) < part.shape[-2]):
                raise ValueError("rows of one kind of weight cannot go among those of another")
            parts.append(part.take_rows(own))
            begin += part.shape[-2]
        return RowStack(tuple(parts))


Weight: TypeAlias = Plain | RowStack
"""Of any kind."""


def takes_int8_rows(weight: Weight) -> bool:
    """Whether a product is that of whole numbers, of the weight or of some of its rows."""
    parts = weight.parts if isinstance(weight, RowStack) else (weight,)
    return any(isinstance(part, ChannelInt8) for part in parts)


def may_round_rows(weight: Quantised) -> bool:
    """Whether a product takes rows of activations as codes of 8 bits, on some device at least."""
    return isinstance(weight, ChannelInt8) or (
        isinstance(weight, ScaledFp8) and weight.row_group is not None
    )


def stack_rows(parts: Sequence[Plain]) -> Weight:
    """Matrices [rows, in], or stacks of them, below each other: one of their kind if they have one, else a
    `RowStack`."""
    first, *others = parts
    if not others:
        return first
    if isinstance(first, Dense):
        dense = [part.tensor for part in parts if isinstance(part, Dense)]
        return Dense(torch.cat(dense, -2)) if len(dense) == len(parts) else RowStack(tuple(parts))
    return first.above(others) or RowStack(tuple(parts))


def stack_matrices(parts: Sequence[Plain]) -> Plain:
    """A stack of matrices of one shape: of their kind if they have one, else of what they stand for.

    ConfigError for `ChannelInt8` beside others, whose products are those of no dense weight.
    """
    first, *others = parts
    together = None if isinstance(first, Dense) else first.beside(others)
    if together is None and any(map(takes_int8_rows, parts)):
        raise ConfigError(
            "the checkpoint has input_activations with num_bits = 8 and type = 'int' for some of a layer's experts and"
            " others for the rest, but all must be quantised alike"
        )
    return together or Dense(torch.stack([part.dense() for part in parts]))


def put_together(placed: Sequence[tuple[tuple[int | slice, ...], Plain]]) -> Weight:
    """A weight of its parts and their places: rows of a matrix, matrices of a stack, or rows of these."""
    by_row: dict[int, list[tuple[tuple[int | slice, ...], Plain]]] = {}
    for place, part in placed:
        rows = place[-1] if place else None
        begin = rows.start if isinstance(rows, slice) else 0
        # What is in one tensor for all matrices of a stack is a stack.
        number = tuple(
            n for n in (place[:-1] if isinstance(rows, slice) else place) if n != slice(None)
        )
        by_row.setdefault(begin, []).append((number, part))
    stacked = []
    for _, parts in sorted(by_row.items(), key=lambda item: item[0]):
        numbered = sorted(parts, key=lambda item: item[0])
        is_stack = bool(numbered[0][0])
        stacked.append(stack_matrices([p for _, p in numbered]) if is_stack else numbered[0][1])
    return stack_rows(stacked)
