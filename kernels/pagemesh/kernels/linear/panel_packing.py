"""Weights brought into panels of 32 columns on CPUs, once, while a model is loaded, about as fast as memory is written.

Rows are read where they are: `columns` says which one becomes which column, int64 [panels · 32].
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, Literal, NamedTuple

import torch
from llvmlite import ir
from torch.nn import functional

from pagemesh.kernels.jit.byte_dots import has_quad_dots
from pagemesh.kernels.jit.cpu_isa import CpuIsa, Recipe, current_isa, per_isa
from pagemesh.kernels.jit.emit import (
    I1,
    I8,
    I32,
    I64,
    LANES,
    VEC_I32,
    Emitter,
    constant_vector,
    int_lanes,
    transposed,
)
from pagemesh.kernels.jit.parallel import RowKernel, Values
from pagemesh.kernels.jit.tile_registers import multiplies_int8
from pagemesh.kernels.linear.packed import ChannelInt8
from pagemesh.kernels.linear.panel_sums import COLUMNS
from pagemesh.kernels.packed_weights import place_made, place_packed

Layout = Literal["tiles", "lines"]
"""Of words: in squares of 16 of 16 columns, [words / 16, 2, 16, 16 columns]; or each of all columns, [words, 32]."""

Int8Order = Literal["tiles", "quads", "words"]
"""By what multiplies whole numbers. For words, codes of rows are words."""

STEP_INPUTS: Final[Mapping[Int8Order, int]] = {"tiles": 64, "quads": 4, "words": 4}
"""Inputs are filled up to a multiple of these."""

ROW_EXCESS: Final = 128
"""For quads, bytes of rows are as much more than their codes."""

COLUMN_LINE_BYTES: Final = 32
"""See `CodeLines`."""
_BLOCKS_AT_ONCE: Final = 256


def place_words(rows: torch.Tensor, columns: torch.Tensor, layout: Layout) -> torch.Tensor:
    """Rows [out, in] as int32 [panels, …] where a weight stays: words of a float32, of two bfloat16 or of four bytes, of
    which a row has whole ones and, in tiles, a multiple of 16."""
    rows = rows.contiguous()
    num_panels, num_words = len(columns) // COLUMNS, rows.shape[1] * rows.element_size() // 4
    shape = {
        "tiles": (num_panels, num_words // LANES, 2, LANES, LANES),
        "lines": (num_panels, num_words, COLUMNS),
    }[layout]
    return place_made(shape, torch.int32, lambda place: pack_words(rows, columns, layout, place))


def pack_words(
    rows: torch.Tensor, columns: torch.Tensor, layout: Layout, place: torch.Tensor
) -> None:
    """The same for dense rows, into a place that is given."""
    num_words = rows.shape[1] * rows.element_size() // 4
    arguments = (rows.data_ptr(), columns.data_ptr(), place.data_ptr(), num_words)
    kernel = _compile_words(layout, num_words % LANES)
    kernel.run(len(place), COLUMNS * num_words, arguments, in_pieces=False)


@per_isa
def _compile_words(recipe: Recipe, layout: Layout, num_last: int) -> RowKernel:
    """Of rows that have so many words behind the last 16."""
    stride, half_stride = (LANES, LANES * LANES) if layout == "tiles" else (COLUMNS, LANES)

    def emit_panel(e: Emitter, values: Values, panel: ir.Value) -> None:
        b = e.builder
        num_words = values["num_words"]
        rows = _rows(e, values, panel, num_words)
        target = e.at(values["place"], b.mul(panel, b.mul(num_words, e.int64(COLUMNS))))

        def emit_square(first: ir.Value, count: int) -> None:
            """So many words from the first one on."""
            for half in range(2):
                words = [
                    _load_words(e, e.at(row, first), count)
                    for row in rows[half * LANES : (half + 1) * LANES]
                ]
                begin = b.add(b.mul(first, e.int64(COLUMNS)), e.int64(half * half_stride))
                for number, line in enumerate(transposed(e, words)[:count]):
                    place = b.add(begin, e.int64(number * stride))
                    e.store(line, e.at(target, place))

        num_whole = b.sub(num_words, e.int64(num_last))
        with e.loop(e.int64(0), num_whole, LANES) as first:
            emit_square(first, LANES)
        if num_last:
            emit_square(num_whole, num_last)

    arguments = {"rows": I32, "columns": I64, "place": I32, "num_words": None}
    return RowKernel(recipe, arguments, emit_panel)


def _rows(e: Emitter, values: Values, panel: ir.Value, row_size: ir.Value) -> list[ir.Value]:
    """Where the rows begin that a panel's columns are."""
    b = e.builder
    own = e.at(values["columns"], b.mul(panel, e.int64(COLUMNS)))
    numbers = (b.load(e.at(own, e.int64(column))) for column in range(COLUMNS))
    return [e.at(values["rows"], b.mul(number, row_size)) for number in numbers]


def _load_words(e: Emitter, address: ir.Value, count: int) -> ir.Value:
    """So many, and zeros behind them."""
    vector = e.builder.bitcast(address, VEC_I32.as_pointer())
    if count == LANES:
        words = e.builder.load(vector)
        words.align = 1
        return words
    mask = ir.Constant(ir.VectorType(I1, LANES), [lane < count for lane in range(LANES)])
    name, one = "llvm.masked.load.v16i32.p0", ir.Constant(I32, 1)
    return e.intrinsic(name, VEC_I32, vector, one, mask, int_lanes(0))


class CodeLines(NamedTuple):
    """Where a part's codes lie in a panel: of each column behind the other 32 bytes for 32 inputs, or for 64 of 4 bits,
    each byte of which has an input and the one that is 32 behind it."""

    bits: Literal[4, 8]
    codes_offset: int
    """Of a part, in bytes."""
    part_lines: int
    """Of a column, in all parts but the last."""
    turns_codes: bool
    """Whether bytes with two codes are turned left by a bit."""


def pack_lines(
    codes: torch.Tensor, columns: torch.Tensor, lines: CodeLines, place: torch.Tensor
) -> None:
    """Codes of rows, uint8 [out, bytes] and of 4 bits as `pack_halves` leaves them, whole lines of them, into panels,
    uint8 [panels, bytes]."""
    codes = codes.contiguous()
    num_lines = codes.shape[1] // COLUMN_LINE_BYTES
    addresses = (codes.data_ptr(), columns.data_ptr(), place.data_ptr())
    arguments = (*addresses, num_lines, place.stride(0))
    _compile_lines(lines).run(len(place), COLUMNS * codes.shape[1], arguments, in_pieces=False)


@per_isa
def _compile_lines(recipe: Recipe, lines: CodeLines) -> RowKernel:
    def emit_panel(e: Emitter, values: Values, panel: ir.Value) -> None:
        b = e.builder
        size, num_lines = e.int64(COLUMN_LINE_BYTES), values["num_lines"]
        rows = _rows(e, values, panel, b.mul(num_lines, size))
        target = e.at(values["place"], b.mul(panel, values["panel_bytes"]))
        part_bytes = lines.codes_offset + COLUMNS * lines.part_lines * COLUMN_LINE_BYTES
        with e.loop(e.int64(0), num_lines, lines.part_lines) as first:
            left = b.sub(num_lines, first)
            most = e.int64(lines.part_lines)
            count = b.select(b.icmp_signed("<", left, most), left, most)
            part = b.sdiv(first, most)
            begin = b.add(b.mul(part, e.int64(part_bytes)), e.int64(lines.codes_offset))
            for column, row in enumerate(rows):
                own = b.add(begin, b.mul(b.mul(count, size), e.int64(column)))
                with e.loop(e.int64(0), count) as line:
                    packed = _line(e, e.at(row, b.mul(b.add(first, line), size)), lines)
                    e.store(packed, e.at(target, b.add(own, b.mul(line, size))), 1)

    arguments = {"rows": I8, "columns": I64, "place": I8, "num_lines": None, "panel_bytes": None}
    return RowKernel(recipe, arguments, emit_panel)


def _line(e: Emitter, source: ir.Value, lines: CodeLines) -> ir.Value:
    """32 bytes of a row, as a line has them."""
    b = e.builder
    kind = ir.VectorType(I8, COLUMN_LINE_BYTES)
    read = b.load(b.bitcast(source, kind.as_pointer()))
    read.align = 1
    if lines.bits == 8:
        return read
    lower, upper = (
        b.and_(read, _bytes(15, COLUMN_LINE_BYTES)),
        b.lshr(read, _bytes(4, COLUMN_LINE_BYTES)),
    )
    # Inputs one after the other: of a byte first the lower half.
    half = COLUMN_LINE_BYTES // 2
    near, far = (
        e.shuffle(
            lower,
            upper,
            [lane for i in range(half) for lane in (first + i, COLUMN_LINE_BYTES + first + i)],
        )
        for first in (0, half)
    )
    packed = b.or_(near, b.shl(far, _bytes(4, COLUMN_LINE_BYTES)))
    if not lines.turns_codes:
        return packed
    parts = (
        b.shl(packed, _bytes(1, COLUMN_LINE_BYTES)),
        b.lshr(packed, _bytes(7, COLUMN_LINE_BYTES)),
    )
    return b.or_(*parts)


class TableRows(NamedTuple):
    """Where numbers that codes are multiplied with lie in a panel: rows of all columns at the begin of each part."""

    offset: int
    """Of the first row in a part, in bytes."""
    number: int
    """Of rows in a part."""
    parts_per_number: int
    """That share a number, where a part has one row."""
    gap: int
    """Bytes behind the last row, which are zeros."""
    part_bytes: int
    num_parts: int


def pack_table(
    table: torch.Tensor, columns: torch.Tensor, rows: TableRows, place: torch.Tensor
) -> None:
    """Whole numbers of rows, [out, runs of inputs], into panels, uint8 [panels, bytes]; zeros for runs that there are
    not."""
    table = table.contiguous()
    kernel = _compile_table(8 * table.element_size(), rows)
    addresses = (table.data_ptr(), columns.data_ptr(), place.data_ptr())
    size = COLUMNS * rows.num_parts * rows.number
    arguments = (*addresses, table.shape[1], place.stride(0))
    kernel.run(len(place), size, arguments, in_pieces=False)


@per_isa
def _compile_table(recipe: Recipe, bits: int, rows: TableRows) -> RowKernel:
    element = ir.IntType(bits)

    def emit_panel(e: Emitter, values: Values, panel: ir.Value) -> None:
        b = e.builder
        num_runs = values["num_runs"]
        target = e.at(values["place"], b.mul(panel, values["panel_bytes"]))
        own_columns = e.at(values["columns"], b.mul(panel, e.int64(COLUMNS)))

        def number_at(row: ir.Value, part: ir.Value, index: int) -> ir.Value:
            last = b.sub(num_runs, e.int64(1))
            run = b.add(b.mul(part, e.int64(rows.number)), e.int64(index))
            if rows.number == 1:
                run = b.sdiv(part, e.int64(rows.parts_per_number))
            there = b.select(b.icmp_signed("<", run, num_runs), run, last)
            number = b.load(e.at(row, there))
            if rows.number == 1:
                return number
            return b.select(b.icmp_signed("<", run, num_runs), number, ir.Constant(element, 0))

        with e.loop(e.int64(0), e.int64(COLUMNS)) as column:
            row = e.at(values["table"], b.mul(b.load(e.at(own_columns, column)), num_runs))
            with e.loop(e.int64(0), e.int64(rows.num_parts)) as part:
                begin = b.add(b.mul(part, e.int64(rows.part_bytes)), e.int64(rows.offset))
                line = b.bitcast(e.at(target, begin), element.as_pointer())
                for index in range(rows.number):
                    place = b.add(column, e.int64(index * COLUMNS))
                    b.store(number_at(row, part, index), e.at(line, place))
        if rows.gap:
            end = rows.offset + rows.number * COLUMNS * bits // 8
            with e.loop(e.int64(0), e.int64(rows.num_parts)) as part:
                begin = b.add(b.mul(part, e.int64(rows.part_bytes)), e.int64(end))
                zeros = ir.Constant(ir.VectorType(I8, rows.gap), [0] * rows.gap)
                e.store(zeros, e.at(target, begin), 1)

    arguments = {"table": element, "columns": I64, "place": I8}
    arguments |= {"num_runs": None, "panel_bytes": None}
    return RowKernel(recipe, arguments, emit_panel)


def pair_nibbles(packed: torch.Tensor, group: int) -> torch.Tensor:
    """Codes of 4 bits, of whose groups of bytes the lower halves come first, uint8 [blocks, bytes] with a block's side by
    side, as `pack_halves` leaves them; dense."""
    return _dense(packed, group)


def lift_bytes(packed: torch.Tensor) -> torch.Tensor:
    """Signed codes of 8 bits, uint8 [blocks, bytes] with a block's side by side, 128 higher; dense."""
    return _dense(packed, None)


def _dense(packed: torch.Tensor, nibble_group: int | None) -> torch.Tensor:
    num_blocks, size = packed.shape
    output = torch.empty(num_blocks, size, dtype=torch.uint8)
    arguments = (packed.data_ptr(), packed.stride(0), output.data_ptr(), num_blocks)
    num_items = -(-num_blocks // _BLOCKS_AT_ONCE)
    _compile_blocks(size, nibble_group).run(num_items, _BLOCKS_AT_ONCE * size, arguments)
    return output


@per_isa
def _compile_blocks(recipe: Recipe, size: int, nibble_group: int | None) -> RowKernel:
    group = nibble_group or size
    kind = ir.VectorType(I8, group)

    def emit_group(e: Emitter, read: ir.Value) -> ir.Value:
        b = e.builder
        if nibble_group is None:
            return b.xor(read, _bytes(0x80, group))
        lower = b.and_(read, _bytes(15, group))
        upper = b.lshr(read, _bytes(4, group))
        even, odd = (e.shuffle(lower, upper, range(first, 2 * group, 2)) for first in range(2))
        return b.or_(even, b.shl(odd, _bytes(4, group)))

    def emit_blocks(e: Emitter, values: Values, item: ir.Value) -> None:
        b = e.builder
        begin = b.mul(item, e.int64(_BLOCKS_AT_ONCE))
        end = b.add(begin, e.int64(_BLOCKS_AT_ONCE))
        end = b.select(b.icmp_signed("<", end, values["num_blocks"]), end, values["num_blocks"])
        with e.loop(begin, end) as block:
            source = e.at(values["packed"], b.mul(block, values["stride"]))
            target = e.at(values["output"], b.mul(block, e.int64(size)))
            for offset in range(0, size, group):
                read = b.load(b.bitcast(e.at(source, e.int64(offset)), kind.as_pointer()))
                read.align = 1
                e.store(emit_group(e, read), e.at(target, e.int64(offset)), 1)

    arguments = {"packed": I8, "stride": None, "output": I8, "num_blocks": None}
    return RowKernel(recipe, arguments, emit_blocks)


def int8_order() -> Int8Order:
    """The fastest of the class's processors that this one has."""
    if current_isa() == CpuIsa.AMX and multiplies_int8():
        return "tiles"
    return "quads" if has_quad_dots() else "words"


class Int8Panels(NamedTuple):
    """A weight as kernels read it, its rows filling panels."""

    codes: torch.Tensor
    """[panels, …], a step of all columns behind the other, by its order."""

    scales: torch.Tensor
    """float32 [panels · 32]."""

    starts: torch.Tensor
    """int32 [panels · 32]: what sums begin with."""

    num_steps: int
    input_scale: torch.Tensor | None
    """float32 [1]."""


def pack_int8(weight: ChannelInt8, columns: torch.Tensor, order: Int8Order) -> Int8Panels:
    """Of a weight [out, in]."""
    num_inputs = weight.shape[1]
    assert num_inputs <= weight.most_inputs, "formats refuse longer rows"
    step = STEP_INPUTS[order]
    codes = functional.pad(weight.codes, (0, -num_inputs % step))
    num_steps = codes.shape[1] // step
    starts = torch.zeros(len(columns), dtype=torch.int32)
    if order == "words":
        # By halves of the columns, inputs that are added at once side by side.
        halves = codes[columns].view(-1, 2, LANES, num_steps, step // 2, 2)
        packed = place_packed(halves.permute(0, 3, 1, 4, 2, 5).contiguous())
    else:
        packed = place_words(codes, columns, "tiles" if order == "tiles" else "lines")
    if order == "quads":
        starts = weight.codes.sum(1, dtype=torch.int32)[columns] * -ROW_EXCESS
    scale = weight.input_scale
    return Int8Panels(
        packed,
        weight.scales.flatten()[columns],
        starts,
        num_steps,
        None if scale is None else scale.flatten(),
    )


def _bytes(number: int, count: int) -> ir.Constant:
    """The same in all lanes."""
    return constant_vector(I8, (number,) * count)
