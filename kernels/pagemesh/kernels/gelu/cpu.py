"""GELU as vector code.

torch's own computes the last elements of a tensor, and of each thread's share of it, in another way than
the others: their bits depend on what else is in the batch.
"""

from __future__ import annotations

import functools
import math
from typing import Final

import torch
from llvmlite import ir

from pagemesh.kernels.jit.elements import ELEMENT_TYPES, map_row
from pagemesh.kernels.jit.emit import Emitter
from pagemesh.kernels.jit.rows import RowKernel, Values
from pagemesh.kernels.jit.vector_math import exp

# erfc z = (a1 t + … + a5 t^5) · e^(-z²) with t = 1 / (1 + p z), for z >= 0, to 1.5e-7: formula 7.1.26 of
# Abramowitz and Stegun, Handbook of Mathematical Functions (1964).
_P: Final = 0.3275911
_A: Final = (0.254829592, -0.284496736, 1.421413741, -1.453152027, 1.061405429)
_FURTHEST: Final = 13.0  # Φ(-13) is below all floats


def cpu_gelu(rows: torch.Tensor) -> torch.Tensor:
    """See `make_gelu`; of CPU tensors."""
    if rows.stride(-1) != 1:
        rows = rows.contiguous()
    num_rows, size = rows.shape
    output = torch.empty(num_rows, size, dtype=rows.dtype)
    kernel = _compile(size, rows.dtype)
    kernel.run(num_rows, size, (rows.data_ptr(), rows.stride(0), output.data_ptr()))
    return output


@functools.cache
def _compile(size: int, torch_dtype: torch.dtype) -> RowKernel:
    dtype = str(torch_dtype).removeprefix("torch.")
    element = ELEMENT_TYPES[dtype]

    def emit_row(e: Emitter, values: Values, row: ir.Value) -> None:
        source = e.at(values["rows"], e.builder.mul(row, values["stride"]))
        target = e.at(values["output"], e.builder.mul(row, e.int64(size)))
        map_row(e, size, [(source, dtype)], target, dtype, functools.partial(_gelu, e))

    return RowKernel({"rows": element, "stride": None, "output": element}, emit_row)


def _gelu(e: Emitter, x: ir.Value) -> ir.Value:
    """x · Φ(-|x|) below 0, where nothing cancels, and x · (1 - Φ(-|x|)) from there on."""
    b = e.builder
    distance = e.call("llvm.minnum", e.call("llvm.fabs", x), e.splat(_FURTHEST))
    z = b.fmul(distance, e.splat(math.sqrt(0.5)))
    t = b.fdiv(e.splat(1.0), e.fma(z, e.splat(_P), e.splat(1.0)))
    polynomial = e.splat(_A[-1])
    for coefficient in reversed(_A[:-1]):
        polynomial = e.fma(polynomial, t, e.splat(coefficient))
    power = exp(e, b.fneg(b.fmul(z, z)))
    tail = b.fmul(b.fmul(e.splat(0.5), b.fmul(polynomial, t)), power)
    is_below = b.fcmp_ordered("<", x, e.splat(0.0))
    return b.fmul(x, b.select(is_below, tail, b.fsub(e.splat(1.0), tail)))
