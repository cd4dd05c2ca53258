"""Matmuls on CUDA devices: few rows in the time of reading the weight, and a row the same bits in any
number of them, which cuBLAS does not promise."""

from __future__ import annotations

from typing import Final

import torch

from pagemesh.kernels.gated_activation.interface import Gate
from pagemesh.kernels.launch import cdiv, launch
from pagemesh.kernels.linear.interface import check_rows, check_weight
from pagemesh.kernels.linear.kernel import linear_kernel
from pagemesh.kernels.linear.tiles import GROUP, choose_tiles, num_segments
from pagemesh.kernels.target import arrival_counters, target_of

DTYPES: Final = (torch.float32, torch.bfloat16, torch.float16)
"""Of weights."""


class CudaLinear:
    """`Linear` of CUDA tensors."""

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None) -> None:
        self._product = _Product(weight, bias, None)

    def __call__(self, inputs: torch.Tensor) -> torch.Tensor:
        return self._product.multiply(inputs, None)

    def add_to(self, residual: torch.Tensor, inputs: torch.Tensor) -> torch.Tensor:
        return self._product.multiply(inputs, residual)


class CudaGatedLinear:
    """`GatedLinear` of CUDA tensors."""

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None, gate: Gate) -> None:
        self._product = _Product(weight, bias, gate)

    def __call__(self, inputs: torch.Tensor) -> torch.Tensor:
        return self._product.multiply(inputs, None)


class _Product:
    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None, gate: Gate | None) -> None:
        check_weight(weight, bias, DTYPES, is_gated=gate is not None)
        self._weight = weight.contiguous()
        self._bias = None if bias is None else bias.contiguous()
        self._gate = gate or Gate("silu")
        self._is_gated = gate is not None
        num_rows, self._num_inputs = weight.shape
        self._num_outputs = num_rows // 2 if self._is_gated else num_rows
        self._segments = num_segments(self._num_outputs, self._num_inputs)

    def multiply(self, inputs: torch.Tensor, residual: torch.Tensor | None) -> torch.Tensor:
        """Of rows [T, in] and, where it is added, a residual [T, out]: [T, out]."""
        check_rows(inputs, residual, self._weight, self._num_outputs)
        inputs = inputs if inputs.stride(-1) == 1 else inputs.contiguous()
        if residual is not None and residual.stride(-1) != 1:
            residual = residual.contiguous()
        # Not `len`, which takes torch as long as starting a kernel.
        num_tokens = inputs.shape[0]
        output = inputs.new_empty(num_tokens, self._num_outputs)
        if num_tokens:
            self._launch(inputs, residual, output)
        return output

    def _launch(
        self, inputs: torch.Tensor, residual: torch.Tensor | None, output: torch.Tensor
    ) -> None:
        num_tokens = inputs.shape[0]
        tiles = choose_tiles(
            self._num_outputs,
            self._num_inputs,
            num_tokens,
            self._segments,
            inputs.dtype,
            target_of(inputs.device),
            is_gated=self._is_gated,
        )
        partials = None
        if tiles.is_split:
            shape = (self._segments, num_tokens, self._weight.shape[0])
            partials = torch.empty(shape, dtype=torch.float32, device=inputs.device)
        launch(
            linear_kernel,
            (
                cdiv(self._num_outputs, tiles.block_out) * cdiv(num_tokens, tiles.block_t),
                self._segments if tiles.is_split else 1,
            ),
            {
                "inputs": inputs,
                "input_stride": inputs.stride(0),
                "weight": self._weight,
                "bias": self._bias,
                "residual": residual,
                "residual_stride": 0 if residual is None else residual.stride(0),
                "output": output,
                "partials": partials,
                "counters": arrival_counters(inputs.device) if tiles.is_split else None,
                "num_tokens": num_tokens,
                "num_outputs": self._num_outputs,
                "num_inputs": self._num_inputs,
                "limit": self._gate.limit,
                "alpha": self._gate.alpha,
                "GATE": self._gate.kind if self._is_gated else None,
                "SEGMENTS": self._segments,
                "GROUP": GROUP,
                **tiles.constants(self._num_inputs, inputs.dtype),
            },
            num_warps=tiles.num_warps,
            num_stages=tiles.num_stages,
            overlaps=True,
        )
