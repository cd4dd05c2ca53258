"""Quantised tensors at their places in a parameter: rows of a matrix, matrices of a stack, in the order of the model."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from pagemesh.errors import ConfigError
from pagemesh.kernels.linear.weight import Plain, Quantised, Weight, stack_matrices, stack_rows
from pagemesh.models.architectures.architecture import Place, Source


def put_together(placed: Sequence[tuple[Place, Plain]]) -> Weight:
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


def in_order(weight: Quantised, source: Source, rows: int) -> Quantised:
    """With its rows in the parameter's order, if the source has another; `rows` is the dimension of the source's
    shape that they are of. ConfigError where it does more than put them in order."""
    if source.convert is None:
        return weight
    num_rows = source.shape[rows]
    numbers = torch.arange(num_rows, device=weight.device)
    order = source.convert(
        numbers.view([-1 if d == rows else 1 for d in range(len(source.shape))])
    ).flatten()
    if order.dtype != torch.int64 or order.sort().values.tolist() != list(range(num_rows)):
        raise ConfigError(
            f"the tensor {source.tensor} is quantised, but this architecture changes its numbers"
        )
    return weight.take_rows(order)
