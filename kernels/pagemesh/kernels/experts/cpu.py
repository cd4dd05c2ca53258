"""Experts on a CPU, one after another.

Tokens are sorted by expert, so that every expert that is used at all multiplies all its tokens at once; a
token's outputs are then weighted and summed in the order of its own choices, by code of its own. What other
tokens do changes nothing but how many rows a matmul has.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import torch
from llvmlite import ir

from pagemesh.kernels.expert_choice.interface import Choices
from pagemesh.kernels.experts.interface import Stack, check_choices, check_stacks
from pagemesh.kernels.gated_activation.interface import Gate
from pagemesh.kernels.jit.cpu_isa import Recipe, per_isa
from pagemesh.kernels.jit.elements import ELEMENT_TYPES, load_element, map_row
from pagemesh.kernels.jit.emit import I64, Emitter
from pagemesh.kernels.jit.parallel import RowKernel, Values
from pagemesh.kernels.linear import Weight, make_gated_linear, make_linear

Expert = Callable[[torch.Tensor], torch.Tensor]
"""[tokens, hidden] → [tokens, hidden]."""


class SortedExperts:
    """`Experts` of CPU tensors."""

    def __init__(self, experts: Sequence[Expert]) -> None:
        self._experts = experts

    def __call__(self, hidden: torch.Tensor, choices: Choices) -> torch.Tensor:
        return self._sum(hidden, choices, None)

    def add_to(
        self, residual: torch.Tensor, hidden: torch.Tensor, choices: Choices
    ) -> torch.Tensor:
        return self._sum(hidden, choices, residual)

    def _sum(
        self, hidden: torch.Tensor, choices: Choices, residual: torch.Tensor | None
    ) -> torch.Tensor:
        check_choices(hidden, choices, residual)
        chosen = choices.experts
        by_choice = chosen.flatten()
        order = torch.argsort(by_choice, stable=True)
        places = torch.empty_like(order)
        places[order] = torch.arange(len(order))
        sorted_inputs = hidden.index_select(0, order.div(chosen.shape[1], rounding_mode="floor"))
        counts = torch.bincount(by_choice, minlength=len(self._experts)).tolist()
        outputs = torch.cat(list(self._run(sorted_inputs, counts)))
        return sum_choices(outputs, places.view(chosen.shape), choices.weights, residual)

    def _run(self, sorted_inputs: torch.Tensor, counts: Sequence[int]) -> Iterator[torch.Tensor]:
        """Outputs of the experts that have tokens, expert by expert."""
        begin = 0
        for expert, count in zip(self._experts, counts, strict=True):
            if count:
                yield expert(sorted_inputs.narrow(0, begin, count))
                begin += count


def make_cpu_experts(ups: Stack, downs: Stack, gate: Gate) -> SortedExperts:
    """See `make_experts`."""
    check_stacks(ups, downs)
    return SortedExperts(
        [_make_expert(ups, downs, gate, number) for number in range(ups.weight.shape[0])]
    )


def _make_expert(ups: Stack, downs: Stack, gate: Gate, number: int) -> Expert:
    expand = make_gated_linear(*_of_expert(ups, number), gate)
    down = make_linear(*_of_expert(downs, number))
    return lambda hidden: down(expand(hidden))


def _of_expert(stack: Stack, number: int) -> tuple[Weight, torch.Tensor | None]:
    return stack.weight.matrix(number), None if stack.bias is None else stack.bias[number]


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
    kernel = _compile(size, num_choices, outputs.dtype, weights.dtype, adds=residual is not None)
    kernel.run(num_tokens, size * num_choices, [tensor.data_ptr() for tensor in tensors])
    return total


@per_isa
def _compile(
    recipe: Recipe,
    size: int,
    num_choices: int,
    torch_dtype: torch.dtype,
    torch_weight_dtype: torch.dtype,
    *,
    adds: bool,
) -> RowKernel:
    dtype, weight_dtype = (
        str(each).removeprefix("torch.") for each in (torch_dtype, torch_weight_dtype)
    )
    element, weight = ELEMENT_TYPES[dtype], ELEMENT_TYPES[weight_dtype]
    arguments = {"outputs": element, "places": I64, "weights": weight, "total": element}
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
            weight = load_element(e, e.at(values["weights"], number), weight_dtype)
            weights.append(e.broadcast(weight))
        if adds:
            sources.append((e.at(values["residual"], begin), dtype))

        def add(*vectors: ir.Value) -> ir.Value:
            total = vectors[num_choices] if adds else e.splat(0.0)
            for weight, vector in zip(weights, vectors[:num_choices], strict=True):
                total = e.fma(weight, vector, total)
            return total

        map_row(e, size, sources, e.at(values["total"], begin), dtype, add)

    return RowKernel(recipe, arguments, emit_row)
