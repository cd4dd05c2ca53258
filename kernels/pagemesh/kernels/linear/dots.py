"""Weights in panels, for processors that multiply pairs of bfloat16: products, and gated ones."""

from __future__ import annotations

import ctypes
from typing import Final

import torch
from torch.nn import functional

from pagemesh.kernels.gated_activation.interface import Gate
from pagemesh.kernels.jit.cpu_isa import CpuIsa, current_isa
from pagemesh.kernels.jit.emit import LANES
from pagemesh.kernels.jit.parallel import run_parallel
from pagemesh.kernels.linear.dots_kernel import ARGUMENTS, COLUMNS, compile_dots

_CHUNK_ROWS: Final = 192
"""Rows of an item: they and a panel fit the second-level cache."""

_MIN_SHARED_PRODUCTS: Final = 1 << 17
"""Multiplications from which on threads share them: below, waking the others takes as long as they save."""

_Arguments = ctypes.c_int64 * len(ARGUMENTS)


def can_dot(weight: torch.Tensor) -> bool:
    """Whether this processor multiplies pairs of such a weight, and has nothing faster for it."""
    if weight.device.type != "cpu" or weight.dtype != torch.bfloat16 or weight.shape[1] % 2:
        return False
    return current_isa() == CpuIsa.AVX512_BF16


class DotLinear:
    """`Linear` over a weight in panels."""

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None) -> None:
        self._panels = _Panels(_padded(weight), _padded(_bias(weight, bias)), len(weight), None)

    def __call__(self, inputs: torch.Tensor) -> torch.Tensor:
        """See `Linear`."""
        return self._panels.multiply(inputs, None)

    def add_to(self, residual: torch.Tensor, inputs: torch.Tensor) -> torch.Tensor:
        """See `Linear`."""
        return self._panels.multiply(inputs, residual)


class GatedDotLinear:
    """`GatedLinear` over a weight in panels of 16 gates and their ups."""

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None, gate: Gate) -> None:
        self._panels = _Panels(
            _interleaved(weight), _interleaved(_bias(weight, bias)), len(weight) // 2, gate
        )

    def __call__(self, inputs: torch.Tensor) -> torch.Tensor:
        """See `GatedLinear`."""
        return self._panels.multiply(inputs, None)


class _Panels:
    def __init__(
        self, weight: torch.Tensor, bias: torch.Tensor, num_columns: int, gate: Gate | None
    ) -> None:
        """`weight` is [panels · 32, in], `bias` float32 [panels · 32]."""
        self._num_columns = num_columns
        self._num_panels = len(weight) // COLUMNS
        self._num_pairs = weight.shape[1] // 2
        pairs = weight.view(self._num_panels, COLUMNS, self._num_pairs, 2)
        self._weight = pairs.transpose(1, 2).contiguous()
        self._bias = bias
        self._function = compile_dots(gate)

    def multiply(self, inputs: torch.Tensor, residual: torch.Tensor | None) -> torch.Tensor:
        """Of rows [T, in] and, where it is added, a residual [T, columns]: [T, columns]."""
        if inputs.stride(1) != 1:
            inputs = inputs.contiguous()
        if residual is not None and residual.stride(1) != 1:
            residual = residual.contiguous()
        num_rows = inputs.shape[0]
        output = torch.empty(num_rows, self._num_columns, dtype=inputs.dtype)
        num_chunks = -(-num_rows // _CHUNK_ROWS)
        arguments = _Arguments(
            0,
            self._num_panels * num_chunks,
            num_chunks,
            num_rows,
            self._num_pairs,
            self._num_columns,
            self._weight.data_ptr(),
            self._bias.data_ptr(),
            inputs.data_ptr(),
            inputs.stride(0),
            output.data_ptr(),
            self._num_columns,
            0 if residual is None else residual.data_ptr(),
            0 if residual is None else residual.stride(0),
        )
        num_products = num_rows * self._num_columns * self._num_pairs * 2
        num_threads = torch.get_num_threads() if num_products >= _MIN_SHARED_PRODUCTS else 1
        run_parallel(self._function, ctypes.addressof(arguments), num_threads)
        return output


def _bias(weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    return torch.zeros(len(weight)) if bias is None else bias.float()


def _padded(rows: torch.Tensor, multiple: int = COLUMNS) -> torch.Tensor:
    """Rows of a weight or a bias, filled up with zeros to whole panels."""
    num_missing = -len(rows) % multiple
    if not num_missing:
        return rows
    return functional.pad(rows, (0, 0) * (rows.dim() - 1) + (0, num_missing))


def _interleaved(rows: torch.Tensor) -> torch.Tensor:
    """From gates before ups to 16 gates, their 16 ups, and so on."""
    gates, ups = (_padded(half, LANES) for half in rows.chunk(2))
    pieces = torch.stack([gates, ups]).view(2, -1, LANES, *rows.shape[1:])
    return pieces.transpose(0, 1).flatten(0, 2)
