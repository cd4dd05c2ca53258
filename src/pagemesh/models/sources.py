"""Which tensor of a checkpoint becomes which part of which parameter."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    import torch

Convert = Callable[["torch.Tensor"], "torch.Tensor"]


Place = tuple[int | slice, ...]


class Source(NamedTuple):
    """One tensor of a checkpoint."""

    tensor: str  # its name there
    shape: tuple[int, ...]  # its shape there
    parameter: str  # a name of DecoderSpec.parameter_shapes
    place: Place = ()  # the part of the parameter; all of it when empty
    convert: Convert | None = None  # from its shape to that of its place


def stack_rows(
    parameter: str,
    tensors: Sequence[tuple[str, int]],
    columns: tuple[int, ...],
    leading: tuple[int, ...] = (),
) -> Iterator[Source]:
    """Tensors of so many rows, [rows, *columns], below each other in parameter[leading]."""
    begin = 0
    for tensor, num_rows in tensors:
        place: Place = (*leading, slice(begin, begin + num_rows))
        yield Source(tensor, (num_rows, *columns), parameter, place)
        begin += num_rows
