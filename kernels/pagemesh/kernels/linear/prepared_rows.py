"""Rows as kernels take them: with zeros where a step would end beyond them, or in float32."""

from __future__ import annotations

import torch
from llvmlite import ir

from pagemesh.kernels.jit.cpu_isa import per_isa
from pagemesh.kernels.jit.elements import ELEMENT_TYPES, copy_elements, map_row
from pagemesh.kernels.jit.emit import F32, Emitter
from pagemesh.kernels.jit.parallel import RowKernel, Values


def with_zeros(rows: torch.Tensor, num_zeros: int) -> torch.Tensor:
    """Rows [T, n], a row's elements side by side, with so many zeros behind each; the same tensor if none."""
    if not num_zeros:
        return rows
    num_rows, size = rows.shape
    output = torch.empty(num_rows, size + num_zeros, dtype=rows.dtype)
    kernel = _compile_filling(size, num_zeros, rows.dtype)
    kernel.run(num_rows, size, (rows.data_ptr(), rows.stride(0), output.data_ptr()))
    return output


@per_isa
def _compile_filling(size: int, num_zeros: int, torch_dtype: torch.dtype) -> RowKernel:
    element = ELEMENT_TYPES[str(torch_dtype).removeprefix("torch.")]

    def emit_row(e: Emitter, values: Values, row: ir.Value) -> None:
        b = e.builder
        source = e.at(values["rows"], b.mul(row, values["stride"]))
        target = e.at(values["output"], b.mul(row, e.int64(size + num_zeros)))
        copy_elements(e, source, target, size)
        with e.loop(e.int64(size), e.int64(size + num_zeros)) as index:
            b.store(ir.Constant(element, 0), e.at(target, index))

    return RowKernel({"rows": element, "stride": None, "output": element}, emit_row)


def widen(rows: torch.Tensor) -> torch.Tensor:
    """Rows [T, n], a row's elements side by side, in float32; the same tensor if they are so already."""
    if rows.dtype == torch.float32:
        return rows
    num_rows, size = rows.shape
    output = torch.empty(num_rows, size, dtype=torch.float32)
    kernel = _compile_widening(size, rows.dtype)
    kernel.run(num_rows, size, (rows.data_ptr(), rows.stride(0), output.data_ptr()))
    return output


@per_isa
def _compile_widening(size: int, torch_dtype: torch.dtype) -> RowKernel:
    dtype = str(torch_dtype).removeprefix("torch.")

    def emit_row(e: Emitter, values: Values, row: ir.Value) -> None:
        b = e.builder
        source = e.at(values["rows"], b.mul(row, values["stride"]))
        target = e.at(values["output"], b.mul(row, e.int64(size)))
        map_row(e, size, [(source, dtype)], target, "float32", lambda values: values)

    arguments = {"rows": ELEMENT_TYPES[dtype], "stride": None, "output": F32}
    return RowKernel(arguments, emit_row)
