"""RMSNorm as vector code: two passes over a row, the second of which finds it in the cache."""

from __future__ import annotations

import torch
from llvmlite import ir

from pagemesh.kernels.jit.cpu_isa import Recipe, per_isa
from pagemesh.kernels.jit.elements import (
    ELEMENT_TYPES,
    load_element,
    load_elements,
    map_row,
)
from pagemesh.kernels.jit.emit import F32, I32, LANES, Emitter
from pagemesh.kernels.jit.parallel import RowKernel, Values
from pagemesh.kernels.jit.vector_math import sum_lanes
from pagemesh.kernels.rms_norm.interface import check_rows


class CpuRmsNorm:
    """`RmsNormFunction` of CPU tensors."""

    def __init__(self, weight: torch.Tensor, eps: float) -> None:
        self._weight = weight.contiguous()
        self._size = weight.shape[-1]
        self._eps = eps

    def __call__(self, rows: torch.Tensor) -> torch.Tensor:
        check_rows(rows, self._weight)
        rows = _dense(rows)
        output = torch.empty(rows.shape, dtype=rows.dtype)
        _compile(self._size, self._eps, rows.dtype, adds=False).run(
            len(rows),
            self._size,
            (rows.data_ptr(), rows.stride(0), output.data_ptr(), self._weight.data_ptr()),
        )
        return output

    def add_to(self, residual: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
        check_rows(rows, self._weight)
        check_rows(residual, self._weight)
        rows, residual = _dense(rows), _dense(residual)
        output = torch.empty(rows.shape, dtype=rows.dtype)
        _compile(self._size, self._eps, rows.dtype, adds=True).run(
            len(rows),
            self._size,
            (
                rows.data_ptr(),
                rows.stride(0),
                output.data_ptr(),
                self._weight.data_ptr(),
                residual.data_ptr(),
                residual.stride(0),
            ),
        )
        return output


def _dense(rows: torch.Tensor) -> torch.Tensor:
    return rows if rows.stride(-1) == 1 else rows.contiguous()


@per_isa
def _compile(
    recipe: Recipe, size: int, eps: float, torch_dtype: torch.dtype, *, adds: bool
) -> RowKernel:
    dtype = str(torch_dtype).removeprefix("torch.")
    element = ELEMENT_TYPES[dtype]
    arguments = {"rows": element, "stride": None, "output": element, "weight": F32}
    if adds:
        arguments |= {"residual": element, "residual_stride": None}

    def emit_row(e: Emitter, values: Values, row: ir.Value) -> None:
        source = e.at(values["rows"], e.builder.mul(row, values["stride"]))
        target = e.at(values["output"], e.builder.mul(row, e.int64(size)))
        factor = e.broadcast(inverse_root_mean_square(e, source, size, eps, dtype))

        def scale(values: ir.Value, weights: ir.Value, *residual: ir.Value) -> ir.Value:
            normed = e.builder.fmul(e.builder.fmul(values, factor), weights)
            return e.builder.fadd(normed, residual[0]) if residual else normed

        sources = [(source, dtype), (values["weight"], "float32")]
        if adds:
            added = e.builder.mul(row, values["residual_stride"])
            sources.append((e.at(values["residual"], added), dtype))
        map_row(e, size, sources, target, dtype, scale)

    return RowKernel(recipe, arguments, emit_row)


def inverse_root_mean_square(
    e: Emitter, source: ir.Value, size: int, eps: float, dtype: str
) -> ir.Value:
    """1 / √(mean x² + eps) of a row, as a float."""
    b = e.builder
    num_whole = size // LANES * LANES
    squares = e.scratch(LANES)
    e.store(e.splat(0.0), squares, 64)
    with e.loop(e.int64(0), e.int64(num_whole), LANES) as index:
        values = load_elements(e, e.at(source, index), dtype)
        e.store(e.fma(values, values, e.load(squares, 64)), squares, 64)
    if num_whole < size:
        with e.loop(e.int64(num_whole), e.int64(size)) as index:
            value = load_element(e, e.at(source, index), dtype)
            b.store(e.fma(value, value, b.load(squares)), squares)
    total = b.extract_element(sum_lanes(e, e.load(squares, 64)), ir.Constant(I32, 0))
    mean = b.fadd(b.fdiv(total, ir.Constant(F32, size)), ir.Constant(F32, eps))
    return b.fdiv(ir.Constant(F32, 1.0), e.call("llvm.sqrt", mean))
