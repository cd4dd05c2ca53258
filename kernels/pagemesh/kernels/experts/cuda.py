"""Experts on CUDA devices: three kernels, and two before them where nobody has sorted the choices yet; their
shapes depend on the number of tokens alone, so that they go into a CUDA graph."""

from __future__ import annotations

from typing import Final

import torch

from pagemesh.kernels.expert_choice.interface import ByExpert, Choices
from pagemesh.kernels.experts.interface import Stack, check_choices, check_stacks
from pagemesh.kernels.experts.kernel import (
    count_pairs_kernel,
    experts_kernel,
    sort_pairs_kernel,
    sum_choices_kernel,
)
from pagemesh.kernels.gated_activation.interface import Gate
from pagemesh.kernels.launch import BoundKernel, cdiv, launch, next_power_of_2
from pagemesh.kernels.linear.cuda_product import DTYPES
from pagemesh.kernels.linear.cuda_weight import KernelRows, KernelWeight
from pagemesh.kernels.linear.interface import check_rows, check_weight
from pagemesh.kernels.linear.tiles import (
    GROUP,
    Tiles,
    choose_block_t,
    choose_tiles,
    most_token_tiles,
    num_segments,
)
from pagemesh.kernels.target import arrival_counters, target_of

_CHUNK: Final = 1024
"""Pairs that one program counts and sorts."""

_BLOCK_PAIRS: Final = 32
"""Of which so many at once."""

_BLOCK_CHUNKS: Final = 16

_BLOCK_COLUMNS: Final = 1024
"""Values of a program that sums a token's choices."""


class CudaExperts:
    """`Experts` of CUDA tensors."""

    def __init__(self, ups: Stack, downs: Stack, gate: Gate) -> None:
        check_stacks(ups, downs)
        self._ups = _Projection(ups, gate)
        self._downs = _Projection(downs, None)
        self._num_experts = ups.weight.shape[0]

    def __call__(self, hidden: torch.Tensor, choices: Choices) -> torch.Tensor:
        check_choices(hidden, choices)
        return self._compute(hidden, choices, None)

    def add_to(
        self, residual: torch.Tensor, hidden: torch.Tensor, choices: Choices
    ) -> torch.Tensor:
        check_choices(hidden, choices, residual)
        if residual.stride(-1) != 1:
            residual = residual.contiguous()
        return self._compute(hidden, choices, residual)

    def _compute(
        self, hidden: torch.Tensor, choices: Choices, residual: torch.Tensor | None
    ) -> torch.Tensor:
        total = torch.empty_like(hidden, memory_format=torch.contiguous_format)
        if not len(hidden):
            return total
        weights, num_choices = choices.weights, choices.experts.shape[1]
        pairs = choices.by_expert or _sort(choices.experts, self._num_experts)
        activated = self._ups.multiply(hidden, pairs, num_choices)
        outputs = self._downs.multiply(activated, pairs, num_choices)
        block = min(next_power_of_2(total.shape[1]), _BLOCK_COLUMNS)
        weights = weights if weights.stride(-1) == 1 else weights.contiguous()
        launch(
            sum_choices_kernel,
            (len(total), cdiv(total.shape[1], block)),
            {
                "outputs": outputs,
                "weights": weights,
                "weight_stride": weights.stride(0),
                "residual": residual,
                "residual_stride": 0 if residual is None else residual.stride(0),
                "total": total,
                "size": total.shape[1],
                "CHOICES": num_choices,
                "BLOCK": block,
            },
            overlaps=True,
        )
        return total


def _sort(chosen: torch.Tensor, num_experts: int) -> ByExpert:
    chosen = chosen.contiguous()
    block_t = choose_block_t(chosen.numel(), num_experts)
    num_pairs = chosen.numel()
    num_chunks = cdiv(num_pairs, _CHUNK)
    num_tiles = most_token_tiles(num_pairs, block_t, num_experts)
    block_experts = max(next_power_of_2(num_experts), 16)
    num_warps = 8 if block_experts > 64 else 4
    empty = torch.empty(0, dtype=torch.int32, device=chosen.device)
    counts = empty.new_empty(num_chunks, block_experts)
    pairs = ByExpert(empty.new_empty(num_pairs), empty.new_empty(num_tiles, 3))
    constants = {
        "CHUNK": _CHUNK,
        "BLOCK_PAIRS": _BLOCK_PAIRS,
        "BLOCK_EXPERTS": block_experts,
    }
    arguments = {"chosen": chosen, "counts": counts, "num_pairs": num_pairs, **constants}
    launch(count_pairs_kernel, (num_chunks,), arguments, num_warps=num_warps, overlaps=True)
    arguments |= {
        "order": pairs.order,
        "tiles": pairs.tiles,
        "num_chunks": num_chunks,
        "num_tiles": num_tiles,
        "BLOCK_CHUNKS": _BLOCK_CHUNKS,
        "BLOCK_T": block_t,
    }
    launch(sort_pairs_kernel, (num_chunks,), arguments, num_warps=num_warps, overlaps=True)
    return pairs


class _Projection:
    """One of the two matmuls, for all experts."""

    def __init__(self, stack: Stack, gate: Gate | None) -> None:
        self._weight = KernelWeight(stack.weight)
        bias = None if stack.bias is None else stack.bias.flatten()
        check_weight(self._weight, bias, DTYPES, is_gated=gate is not None)
        self._bias = None if bias is None else bias.contiguous()
        self._gate = gate or Gate("silu")
        self._is_gated = gate is not None
        self._num_experts, self._num_rows, self._num_inputs = stack.weight.shape
        self._num_outputs = self._num_rows // 2 if self._is_gated else self._num_rows
        self._kernels: dict[tuple[Tiles, int, int], BoundKernel] = {}

    def multiply(self, inputs: torch.Tensor, pairs: ByExpert, num_choices: int) -> torch.Tensor:
        """Of each pair [pairs, out]; `inputs` are those of the tokens, or of the pairs."""
        check_rows(inputs, None, self._weight, self._num_outputs)
        output = inputs.new_empty(len(pairs.order), self._num_outputs)
        segments = num_segments(self._num_outputs * num_choices, self._num_inputs)
        self._launch(self._weight.take(inputs), pairs, output, segments)
        return output

    def _launch(
        self, rows: KernelRows, pairs: ByExpert, output: torch.Tensor, segments: int
    ) -> None:
        num_pairs, num_tiles, device = len(pairs.order), len(pairs.tiles), output.device
        tiles = choose_tiles(
            self._num_outputs,
            self._num_inputs,
            num_pairs,
            segments,
            rows.numbers.dtype,
            target_of(device),
            is_gated=self._is_gated,
            num_bits=self._weight.num_bits,
            num_experts=self._num_experts,
        )
        # Whose rows are the tokens' has several outputs for each; whose are the pairs', one.
        choices = num_pairs // rows.numbers.shape[0]
        key = tiles, segments, choices
        kernel = self._kernels.get(key)
        if kernel is None:
            kernel = self._kernels[key] = self._bind(tiles, segments, choices, rows.numbers.dtype)
        arguments = rows.arguments
        arguments |= {"order": pairs.order, "tiles": pairs.tiles, "output": output}
        arguments |= {"num_pairs": num_pairs, "num_tiles": num_tiles}
        if tiles.is_split:
            shape = (segments, num_pairs, self._num_rows)
            arguments["partials"] = rows.numbers.new_empty(shape, dtype=rows.sum_dtype)
            arguments["counters"] = arrival_counters(device)
        num_programs = cdiv(self._num_outputs, tiles.block_out) * num_tiles
        kernel.start((num_programs, segments if tiles.is_split else 1), arguments)

    def _bind(self, tiles: Tiles, segments: int, choices: int, dtype: torch.dtype) -> BoundKernel:
        """The kernel with these tiles, for rows that are multiplied in a type."""
        return BoundKernel(
            experts_kernel,
            {
                **self._weight.arguments,
                **({} if tiles.is_split else {"partials": None, "counters": None}),
                "bias": self._bias,
                "num_outputs": self._num_outputs,
                "num_inputs": self._num_inputs,
                "limit": self._gate.limit,
                "alpha": self._gate.alpha,
                "CHOICES": choices,
                "GATE": self._gate.kind if self._is_gated else None,
                "SEGMENTS": segments,
                "GROUP": GROUP,
                **tiles.constants(self._num_inputs, dtype),
            },
            num_warps=tiles.num_warps,
            num_stages=tiles.num_stages,
            overlaps=True,
        )
