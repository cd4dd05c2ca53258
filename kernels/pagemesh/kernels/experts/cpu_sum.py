"""The sum of what a token's experts gave, weighted, in the order of the token's own choices."""

from __future__ import annotations

import torch
from llvmlite import ir

from pagemesh.kernels.jit.cpu_isa import per_isa
from pagemesh.kernels.jit.elements import ELEMENT_TYPES, load_element, map_row
from pagemesh.kernels.jit.emit import I64, Emitter
from pagemesh.kernels.jit.rows import RowKernel, Values


def sum_choices(
    outputs: torch.Tensor,
    places: torch.Tensor,
    weights: torch.Tensor,
    residual: torch.Tensor | None,
) -> torch.Tensor:
    """[T, hidden], added up in float32 and rounded once.

    `outputs` [T · choices, hidden] are the experts', `places` int64 and `weights` [T, choices] say which of
    them are a token's and how much of them; `residual` [T, hidden] is the first summand.
    """
    num_tokens, num_choices = places.shape
    size = outputs.shape[1]
    total = torch.empty(num_tokens, size, dtype=outputs.dtype)
    tensors = [outputs.contiguous(), places.contiguous(), weights.contiguous(), total]
    if residual is not None:
        tensors.append(residual.contiguous())
    kernel = _compile(size, num_choices, outputs.dtype, adds=residual is not None)
    kernel.run(num_tokens, size * num_choices, [tensor.data_ptr() for tensor in tensors])
    return total


@per_isa
def _compile(size: int, num_choices: int, torch_dtype: torch.dtype, *, adds: bool) -> RowKernel:
    dtype = str(torch_dtype).removeprefix("torch.")
    element = ELEMENT_TYPES[dtype]
    arguments = {"outputs": element, "places": I64, "weights": element, "total": element}
    if adds:
        arguments["residual"] = element

    def emit_row(e: Emitter, values: Values, row: ir.Value) -> None:
        b = e.builder
        begin = b.mul(row, e.int64(size))
        sources, weights = [], []
        for choice in range(num_choices):
            number = b.add(b.mul(row, e.int64(num_choices)), e.int64(choice))
            place = b.load(e.at(values["places"], number))
            sources.append((e.at(values["outputs"], b.mul(place, e.int64(size))), dtype))
            weights.append(e.broadcast(load_element(e, e.at(values["weights"], number), dtype)))
        if adds:
            sources.append((e.at(values["residual"], begin), dtype))

        def add(*vectors: ir.Value) -> ir.Value:
            total = vectors[num_choices] if adds else e.splat(0.0)
            for weight, vector in zip(weights, vectors[:num_choices], strict=True):
                total = e.fma(weight, vector, total)
            return total

        map_row(e, size, sources, e.at(values["total"], begin), dtype, add)

    return RowKernel(arguments, emit_row)
