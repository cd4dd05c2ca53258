"""One product on a CUDA device, and all that is computed with it: its kernels, bound when they are first started."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, Literal, NamedTuple

import torch

from pagemesh.kernels.gated_activation import Gate
from pagemesh.kernels.launch import BoundKernel, cdiv
from pagemesh.kernels.linear.cuda_weight import KernelRows, KernelWeight
from pagemesh.kernels.linear.interface import check_rows, check_weight
from pagemesh.kernels.linear.kernel import linear_kernel
from pagemesh.kernels.linear.tiles import GROUP, Tiles, choose_tiles, num_segments
from pagemesh.kernels.linear.weight import Weight
from pagemesh.kernels.rms_norm.cuda import CudaRmsNorm, num_runs
from pagemesh.kernels.rms_norm.interface import NormedRows, UnscaledRows
from pagemesh.kernels.target import arrival_counters, target_of

DTYPES: Final = (torch.float32, torch.bfloat16, torch.float16)
"""Of weights."""


class Product:
    """A weight with all kernels that were started for it."""

    def __init__(self, weight: Weight, bias: torch.Tensor | None, gate: Gate | None) -> None:
        check_weight(weight, bias, DTYPES, is_gated=gate is not None)
        self._weight = KernelWeight(weight)
        self._bias = None if bias is None else bias.contiguous()
        self._gate = gate or Gate("silu")
        self._is_gated = gate is not None
        num_rows, self._num_inputs = weight.shape
        self._num_outputs = num_rows // 2 if self._is_gated else num_rows
        self._segments = num_segments(self._num_outputs, self._num_inputs)
        self._eps = 0.0
        self._kernels: dict[_Variant, BoundKernel] = {}

    def follow(self, norm: CudaRmsNorm) -> bool:
        """Scale the sums of what this norm weighs from now on. False if rows have to be normed before: where they become
        codes, which have scales of their own, and in float16, which may not hold what is not yet scaled."""
        if self._weight.takes_codes or self._weight.dtype == torch.float16:
            return False
        self._eps = norm.eps
        return True

    def multiply(self, inputs: torch.Tensor, residual: torch.Tensor | None) -> torch.Tensor:
        """Of rows [T, in] and, where it is added, a residual [T, out]: [T, out]."""
        return self._compute(inputs, residual, _NOTHING_MORE)

    def add_and_weigh(
        self, inputs: torch.Tensor, residual: torch.Tensor, norm: CudaRmsNorm
    ) -> tuple[torch.Tensor, UnscaledRows]:
        """The same, and what it gives for a product behind the norm."""
        num_tokens = inputs.shape[0]
        weighted = residual.new_empty(num_tokens, self._num_outputs)
        squares = residual.new_empty(num_tokens, norm.num_runs, dtype=torch.float32)
        more = _More({"weighted": weighted, "output_squares": squares}, norm=norm)
        return self._compute(inputs, residual, more), UnscaledRows(weighted, squares)

    def multiply_unscaled(self, rows: NormedRows) -> torch.Tensor:
        """Of what the norm left that it follows, [T, out]."""
        assert isinstance(rows, UnscaledRows)
        scales: Literal["runs", "known"] = "runs" if rows.squares.ndim == 2 else "known"
        return self._compute(rows.weighted, None, _More({"squares": rows.squares}, scales))

    def _compute(
        self, inputs: torch.Tensor, residual: torch.Tensor | None, more: _More
    ) -> torch.Tensor:
        check_rows(inputs, residual, self._weight, self._num_outputs)
        if residual is not None and residual.stride(-1) != 1:
            residual = residual.contiguous()
        # Not `len`, which takes torch as long as starting a kernel.
        num_tokens = inputs.shape[0]
        output = inputs.new_empty(num_tokens, self._num_outputs)
        if num_tokens:
            self._launch(self._weight.take(inputs), residual, output, more)
        return output

    def _launch(
        self, rows: KernelRows, residual: torch.Tensor | None, output: torch.Tensor, more: _More
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
        variant = (tiles, residual is not None, more.scales, more.norm)
        kernel = self._kernels.get(variant)
        if kernel is None:
            kernel = self._kernels[variant] = self._bind(rows.numbers.dtype, *variant)
        arguments = rows.arguments
        arguments |= more.arguments
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

    def _bind(
        self,
        dtype: torch.dtype,
        tiles: Tiles,
        adds: bool,
        scales: Literal["runs", "known"] | None,
        norm: CudaRmsNorm | None,
    ) -> BoundKernel:
        """The kernel of a variant, for rows that are multiplied in a type."""
        absent: dict[str, object] = {} if adds else {"residual": None, "residual_stride": 0}
        if scales is None:
            absent["squares"] = None
        if norm is None:
            absent |= {"weighted": None, "output_squares": None}
        if not tiles.is_split:
            absent |= {"partials": None, "counters": None}
        return BoundKernel(
            linear_kernel,
            {
                **self._weight.arguments,
                **absent,
                "bias": self._bias,
                "norm_weight": None if norm is None else norm.weight,
                "num_outputs": self._num_outputs,
                "num_inputs": self._num_inputs,
                "eps": self._eps,
                "limit": self._gate.limit,
                "alpha": self._gate.alpha,
                "GATE": self._gate.kind if self._is_gated else None,
                "RUNS": num_runs(self._num_inputs) if scales == "runs" else 0,
                "SEGMENTS": self._segments,
                "GROUP": GROUP,
                **tiles.constants(self._num_inputs, dtype),
            },
            num_warps=tiles.num_warps,
            num_stages=tiles.num_stages,
            overlaps=True,
        )


_Variant = tuple[Tiles, bool, Literal["runs", "known"] | None, CudaRmsNorm | None]
"""What a kernel is bound for: whether it adds to a residual, and `_More`."""


class _More(NamedTuple):
    """What a product does of the norms around it."""

    arguments: Mapping[str, object]
    """By the names of the kernel's parameters."""

    scales: Literal["runs", "known"] | None = None
    """What there is of rows that are not yet scaled, if they are not."""

    norm: CudaRmsNorm | None = None
    """For which it leaves rows."""


_NOTHING_MORE: Final = _More({})
