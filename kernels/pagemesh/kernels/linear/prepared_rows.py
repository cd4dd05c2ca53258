"""Rows as kernels take them: with zeros where a step would end beyond them, in float32, or in tiles of their pairs."""

from __future__ import annotations

import torch
from llvmlite import ir

from pagemesh.kernels.jit.cpu_isa import Recipe, per_isa
from pagemesh.kernels.jit.elements import ELEMENT_TYPES, copy_elements, map_row
from pagemesh.kernels.jit.emit import F32, I8, I32, LANES, VEC_I32, Emitter, transposed
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
def _compile_filling(
    recipe: Recipe, size: int, num_zeros: int, torch_dtype: torch.dtype
) -> RowKernel:
    element = ELEMENT_TYPES[str(torch_dtype).removeprefix("torch.")]

    def emit_row(e: Emitter, values: Values, row: ir.Value) -> None:
        b = e.builder
        source = e.at(values["rows"], b.mul(row, values["stride"]))
        target = e.at(values["output"], b.mul(row, e.int64(size + num_zeros)))
        copy_elements(e, source, target, size)
        with e.loop(e.int64(size), e.int64(size + num_zeros)) as index:
            b.store(ir.Constant(element, 0), e.at(target, index))

    return RowKernel(recipe, {"rows": element, "stride": None, "output": element}, emit_row)


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
def _compile_widening(recipe: Recipe, size: int, torch_dtype: torch.dtype) -> RowKernel:
    dtype = str(torch_dtype).removeprefix("torch.")

    def emit_row(e: Emitter, values: Values, row: ir.Value) -> None:
        b = e.builder
        source = e.at(values["rows"], b.mul(row, values["stride"]))
        target = e.at(values["output"], b.mul(row, e.int64(size)))
        map_row(e, size, [(source, dtype)], target, "float32", lambda values: values)

    arguments = {"rows": ELEMENT_TYPES[dtype], "stride": None, "output": F32}
    return RowKernel(recipe, arguments, emit_row)


def paired(rows: torch.Tensor) -> torch.Tensor:
    """Rows [T, n] of 16 bits, n a multiple of 32 and a row's elements side by side, as the right-hand tiles of products:
    [n / 2, 16, 2] for 16 rows after the other, of less rows the last [n / 2, rows, 2]; one row as it is."""
    num_rows, size = rows.shape
    if num_rows == 1:
        return rows
    output = torch.empty(num_rows * size, dtype=rows.dtype)
    num_blocks = size // (2 * LANES)
    num_tiles = -(-num_rows // LANES)
    _compile_pairing().run(
        num_tiles * num_blocks,
        2 * LANES * LANES,
        (
            rows.data_ptr(),
            rows.stride(0) * rows.element_size(),
            output.data_ptr(),
            num_rows,
            num_blocks,
        ),
    )
    return output


@per_isa
def _compile_pairing(recipe: Recipe) -> RowKernel:
    def emit_block(e: Emitter, values: Values, item: ir.Value) -> None:
        """Of 16 rows, 16 pairs."""
        b = e.builder
        tile, block = (op(item, values["num_blocks"]) for op in (b.sdiv, b.srem))
        first = b.mul(tile, e.int64(LANES))
        left = b.sub(values["num_rows"], first)
        width = b.select(b.icmp_signed("<", left, e.int64(LANES)), left, e.int64(LANES))
        lines = []
        for number in range(LANES):
            # Behind the last row it is read again.
            own = b.select(
                b.icmp_signed("<", e.int64(number), width),
                e.int64(number),
                b.sub(width, e.int64(1)),
            )
            begin = b.mul(b.add(first, own), values["stride"])
            place = b.add(begin, b.mul(block, e.int64(4 * LANES)))
            line = b.load(b.bitcast(e.at(values["rows"], place), VEC_I32.as_pointer()))
            line.align = 2
            lines.append(line)
        lanes = ir.Constant(VEC_I32, list(range(LANES)))
        mask = b.icmp_signed("<", lanes, e.broadcast(b.trunc(width, I32), VEC_I32))
        size = b.mul(values["num_blocks"], e.int64(LANES))
        begin = b.add(b.mul(first, size), b.mul(b.mul(block, e.int64(LANES)), width))
        for number, line in enumerate(transposed(e, lines)):
            place = b.add(begin, b.mul(e.int64(number), width))
            address = b.bitcast(e.at(values["output"], place), VEC_I32.as_pointer())
            name, four = "llvm.masked.store.v16i32.p0", ir.Constant(I32, 4)
            e.intrinsic(name, ir.VoidType(), line, address, four, mask)

    arguments = {"rows": I8, "stride": None, "output": I32, "num_rows": None, "num_blocks": None}
    return RowKernel(recipe, arguments, emit_block)
