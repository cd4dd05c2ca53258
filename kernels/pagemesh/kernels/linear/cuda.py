"""Matmuls on CUDA devices: few rows in the time of reading the weight, and a row the same bits in any
number of them, which cuBLAS does not promise."""

from __future__ import annotations

from typing import Final

import torch

from pagemesh.kernels.gated_activation import Gate, make_gated_activation
from pagemesh.kernels.launch import BoundKernel, cdiv
from pagemesh.kernels.linear.cuda_weight import KernelRows, KernelWeight, takes_codes
from pagemesh.kernels.linear.interface import (
    GatedLinear,
    Linear,
    Lookup,
    StepwiseGatedLinear,
    check_rows,
    check_weight,
)
from pagemesh.kernels.linear.kernel import linear_kernel
from pagemesh.kernels.linear.tiles import GROUP, Tiles, choose_tiles, num_segments
from pagemesh.kernels.linear.weight import Dense, Plain, RowStack, Weight
from pagemesh.kernels.target import arrival_counters, target_of

DTYPES: Final = (torch.float32, torch.bfloat16, torch.float16)
"""Of weights."""


def make_cuda_linear(weight: Weight, bias: torch.Tensor | None) -> Linear:
    """See `make_linear`."""
    return CudaRowStack(weight, bias) if isinstance(weight, RowStack) else CudaLinear(weight, bias)


def make_cuda_gated_linear(weight: Weight, bias: torch.Tensor | None, gate: Gate) -> GatedLinear:
    """See `make_gated_linear`."""
    if isinstance(weight, RowStack) and takes_codes(weight):
        # Parts whose products are not those of one dense weight.
        activate = make_gated_activation(gate, weight.device)
        return StepwiseGatedLinear(make_cuda_linear(weight, bias), activate)
    return CudaGatedLinear(weight, bias, gate)


def make_cuda_lookup(table: Plain) -> Lookup:
    """See `make_lookup`."""
    weight = None if isinstance(table, Dense) else KernelWeight(table)
    return table.rows if weight is None or not weight.is_unpacked else weight.rows


class CudaLinear:
    """`Linear` of CUDA tensors."""

    def __init__(self, weight: Weight, bias: torch.Tensor | None) -> None:
        self._product = _Product(weight, bias, None)

    def __call__(self, inputs: torch.Tensor) -> torch.Tensor:
        return self._product.multiply(inputs, None)

    def add_to(self, residual: torch.Tensor, inputs: torch.Tensor) -> torch.Tensor:
        return self._product.multiply(inputs, residual)


class CudaRowStack:
    """`Linear` over parts that are kept otherwise, one after the other."""

    def __init__(self, weight: RowStack, bias: torch.Tensor | None) -> None:
        self._sizes = [part.shape[0] for part in weight.parts]
        biases = [None] * len(self._sizes) if bias is None else bias.split(self._sizes)
        self._parts = [CudaLinear(*each) for each in zip(weight.parts, biases, strict=True)]

    def __call__(self, inputs: torch.Tensor) -> torch.Tensor:
        return torch.cat([part(inputs) for part in self._parts], 1)

    def add_to(self, residual: torch.Tensor, inputs: torch.Tensor) -> torch.Tensor:
        pieces = zip(self._parts, residual.split(self._sizes, 1), strict=True)
        return torch.cat([part.add_to(piece, inputs) for part, piece in pieces], 1)


class CudaGatedLinear:
    """`GatedLinear` of CUDA tensors."""

    def __init__(self, weight: Weight, bias: torch.Tensor | None, gate: Gate) -> None:
        self._product = _Product(weight, bias, gate)

    def __call__(self, inputs: torch.Tensor) -> torch.Tensor:
        return self._product.multiply(inputs, None)


class _Product:
    def __init__(self, weight: Weight, bias: torch.Tensor | None, gate: Gate | None) -> None:
        check_weight(weight, bias, DTYPES, is_gated=gate is not None)
        self._weight = KernelWeight(weight)
        self._bias = None if bias is None else bias.contiguous()
        self._gate = gate or Gate("silu")
        self._is_gated = gate is not None
        num_rows, self._num_inputs = weight.shape
        self._num_outputs = num_rows // 2 if self._is_gated else num_rows
        self._segments = num_segments(self._num_outputs, self._num_inputs)
        self._kernels: dict[tuple[Tiles, bool], BoundKernel] = {}

    def multiply(self, inputs: torch.Tensor, residual: torch.Tensor | None) -> torch.Tensor:
        """Of rows [T, in] and, where it is added, a residual [T, out]: [T, out]."""
        check_rows(inputs, residual, self._weight, self._num_outputs)
        if residual is not None and residual.stride(-1) != 1:
            residual = residual.contiguous()
        # Not `len`, which takes torch as long as starting a kernel.
        num_tokens = inputs.shape[0]
        output = inputs.new_empty(num_tokens, self._num_outputs)
        if num_tokens:
            self._launch(self._weight.take(inputs), residual, output)
        return output

    def _launch(
        self, rows: KernelRows, residual: torch.Tensor | None, output: torch.Tensor
    ) -> None:
        num_tokens, device = output.shape[0], output.device
        tiles = choose_tiles(
            self._num_outputs,
            self._num_inputs,
            num_tokens,
            self._segments,
            rows.numbers.dtype,
            target_of(device),
            is_gated=self._is_gated,
            num_bits=self._weight.num_bits,
        )
        adds = residual is not None
        kernel = self._kernels.get((tiles, adds))
        if kernel is None:
            kernel = self._bind(tiles, rows.numbers.dtype, adds=adds)
            self._kernels[tiles, adds] = kernel
        arguments = rows.arguments
        arguments["output"] = output
        arguments["num_tokens"] = num_tokens
        if residual is not None:
            arguments["residual"] = residual
            arguments["residual_stride"] = residual.stride(0)
        if tiles.is_split:
            shape = (self._segments, num_tokens, self._weight.shape[0])
            arguments["partials"] = rows.numbers.new_empty(shape, dtype=rows.sum_dtype)
            arguments["counters"] = arrival_counters(device)
        num_tiles = cdiv(self._num_outputs, tiles.block_out) * cdiv(num_tokens, tiles.block_t)
        kernel.start((num_tiles, self._segments if tiles.is_split else 1), arguments)

    def _bind(self, tiles: Tiles, dtype: torch.dtype, *, adds: bool) -> BoundKernel:
        """The kernel with these tiles, for rows that are multiplied in a type, with a residual or without one."""
        absent = {} if adds else {"residual": None, "residual_stride": 0}
        if not tiles.is_split:
            absent |= {"partials": None, "counters": None}
        return BoundKernel(
            linear_kernel,
            {
                **self._weight.arguments,
                **absent,
                "bias": self._bias,
                "num_outputs": self._num_outputs,
                "num_inputs": self._num_inputs,
                "limit": self._gate.limit,
                "alpha": self._gate.alpha,
                "GATE": self._gate.kind if self._is_gated else None,
                "SEGMENTS": self._segments,
                "GROUP": GROUP,
                **tiles.constants(self._num_inputs, dtype),
            },
            num_warps=tiles.num_warps,
            num_stages=tiles.num_stages,
            overlaps=True,
        )
