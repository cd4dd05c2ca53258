"""Makes numbers of a part of a packed panel, as they would lie there in a dense one.

What comes out is the bits of `Packed.dense()`. It has scale · (code - zero point) rounded to float32, then less the
minimum rounded to float32, then rounded to the type of the rows. One multiplication with an addition gives the same
where only the sum is rounded: a scale times a zero point is taken for what is added if it fits a float32, and a minimum
if a scale times a code does.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from llvmlite import ir

from pagemesh.kernels.jit.cpu_isa import has_avx512
from pagemesh.kernels.jit.elements import ELEMENT_TYPES, load_elements
from pagemesh.kernels.jit.emit import I8, LANES, VEC, VEC_I32, Emitter, fetch, int_lanes
from pagemesh.kernels.jit.pair_dots import round_to_bfloat16, round_to_pairs
from pagemesh.kernels.linear.packed_parts import (
    LINE_BYTES,
    PART_INPUTS,
    PackedForm,
    Rows,
)
from pagemesh.kernels.linear.panel_sums import COLUMNS


class GroupVectors(NamedTuple):
    """What becomes of a group's codes."""

    scales: Sequence[ir.Value]
    zeros: Sequence[ir.Value] | None
    """Are taken from codes before these are multiplied."""

    subtracted: Sequence[ir.Value] | None
    """Are taken from the products."""


class PartTables:
    """Makes vectors of the rows that a part begins with."""

    def __init__(self, e: Emitter, form: PackedForm) -> None:
        self._e = e
        self._form = form

    def of(self, part: ir.Value, group: ir.Value) -> GroupVectors:
        """Those of a group, by turns for the vectors of its codes."""
        scales, zeros, subtracted = self.halves(part, group)
        return GroupVectors(
            self._spread(scales),
            zeros and self._spread(zeros),
            subtracted and self._spread(subtracted),
        )

    def halves(self, part: ir.Value, group: ir.Value) -> GroupVectors:
        """Those of a group, of both halves of the columns."""
        e, b, form = self._e, self._e.builder, self._form
        scales = self._product(part, group, form.scales, form.scale_units)
        zeros = None
        if form.zero_points is not None:
            zeros = self._row(part, group, form.zero_points)
        elif form.centre:
            zeros = [e.splat(float(form.centre))] * len(scales)
        subtracted = None
        if form.minimums is not None:
            subtracted = self._product(part, group, form.minimums, form.minimum_units)
        elif zeros is not None and self._fits_products_with_zeros():
            subtracted = [b.fmul(*pair) for pair in zip(scales, zeros, strict=True)]
            zeros = None
        return GroupVectors(scales, zeros, subtracted)

    def _fits_products_with_zeros(self) -> bool:
        """Powers of two only move the point, of products within float32; models with others are not loaded."""
        is_power = self._form.zero_points is None and self._form.centre.bit_count() == 1
        return is_power or self._form.is_exact

    def _product(
        self, part: ir.Value, group: ir.Value, numbers: Rows, units: Rows | None
    ) -> list[ir.Value]:
        values = self._row(part, group, numbers)
        if units is None:
            return values
        factors = self._row(part, group, units)
        return [
            self._e.builder.fmul(value, factor)
            for value, factor in zip(values, factors, strict=True)
        ]

    def _row(self, part: ir.Value, group: ir.Value, rows: Rows) -> list[ir.Value]:
        """Floats of both halves of the columns."""
        e, b = self._e, self._e.builder
        place = e.int64(rows.offset)
        if rows.number > 1:
            place = b.add(place, b.mul(group, e.int64(rows.row_bytes)))
        if rows.in_pairs:
            return _pair_floats(e, e.at(part, place))
        half_bytes = rows.row_bytes // 2
        halves = [e.at(part, b.add(place, e.int64(half * half_bytes))) for half in range(2)]
        return [self._floats(half, rows.dtype) for half in halves]

    def _floats(self, address: ir.Value, dtype: str) -> ir.Value:
        """16 numbers in a row's type, as floats."""
        b = self._e.builder
        if dtype in ELEMENT_TYPES:
            typed = b.bitcast(address, ELEMENT_TYPES[dtype].as_pointer())
            return load_elements(self._e, typed, dtype)
        numbers = b.load(b.bitcast(address, ir.VectorType(I8, LANES).as_pointer()))
        numbers.align = 1
        if dtype == "float8_e8m0fnu":
            exponents = b.zext(numbers, VEC_I32)
            is_least = b.icmp_signed("==", exponents, int_lanes(0))
            # 2^-127, which has no leading one.
            raw = b.select(is_least, int_lanes(1 << 22), b.shl(exponents, int_lanes(23)))
            return b.bitcast(raw, VEC)
        widen = b.zext if dtype == "uint8" else b.sext
        return b.sitofp(widen(numbers, VEC_I32), VEC)

    def _spread(self, halves: Sequence[ir.Value]) -> list[ir.Value]:
        """As the lanes of vectors lie: by halves of the columns, or by quarters with two of each."""
        if self._form.order == "singles":
            return list(halves)
        return [
            self._e.shuffle(half, half, [first + lane // 2 for lane in range(LANES)])
            for half in halves
            for first in (0, LANES // 2)
        ]


def _pair_floats(e: Emitter, address: ir.Value) -> list[ir.Value]:
    """Of 16 pairs of bfloat16, the first ones and the second ones."""
    b = e.builder
    pairs = b.load(b.bitcast(address, VEC_I32.as_pointer()))
    pairs.align = LINE_BYTES
    return [
        b.bitcast(each, VEC)
        for each in (b.shl(pairs, int_lanes(16)), b.and_(pairs, int_lanes(-(1 << 16))))
    ]


def scaled(
    e: Emitter, form: PackedForm, value: ir.Value, group: GroupVectors, turn: int
) -> ir.Value:
    """What codes stand for, as floats that are not rounded to the type of the rows yet."""
    b = e.builder
    if group.zeros is not None:
        value = b.fsub(value, group.zeros[turn])
    if group.subtracted is None:
        return b.fmul(group.scales[turn], value)
    if form.minimums is None or form.is_exact:
        return e.fma(group.scales[turn], value, b.fneg(group.subtracted[turn]))
    return b.fsub(b.fmul(group.scales[turn], value), group.subtracted[turn])


def entries(form: PackedForm) -> Sequence[float]:
    """What the codes of 4 bits stand for."""
    decode = form.decode
    return decode if isinstance(decode, tuple) else [float(code) for code in range(16)]


def looked_up(e: Emitter, entries: Sequence[float], codes: ir.Value) -> ir.Value:
    """Entry by entry: for processors without an instruction for it."""
    values = e.splat(0.0)
    for number, entry in enumerate(entries):
        is_it = e.builder.icmp_signed("==", codes, int_lanes(number))
        values = e.builder.select(is_it, e.splat(entry), values)
    return values


class Unpacking:
    """Emits it for one form of weights whose columns lie side by side."""

    def __init__(self, e: Emitter, form: PackedForm) -> None:
        self._e = e
        self._form = form
        self._part_tables = PartTables(e, form)

    def part_place(self, first_input: ir.Value) -> ir.Value:
        """Where in a panel the part begins, in bytes, that begins with this input."""
        b, e = self._e.builder, self._e
        return b.mul(b.sdiv(first_input, e.int64(PART_INPUTS)), e.int64(self._form.part_bytes))

    def panel_bytes(self, num_inputs: ir.Value) -> ir.Value:
        """Of a panel with so many inputs."""
        e, b, form = self._e, self._e.builder, self._form
        num_parts = b.sdiv(b.add(num_inputs, e.int64(PART_INPUTS - 1)), e.int64(PART_INPUTS))
        num_lines = b.sdiv(num_inputs, e.int64(form.line_inputs))
        heads = b.mul(num_parts, e.int64(form.codes_offset))
        return b.add(heads, b.mul(num_lines, e.int64(LINE_BYTES)))

    def emit(self, part: ir.Value, ahead: ir.Value, num_inputs: ir.Value, target: ir.Value) -> None:
        """From the addresses of a part, and of what is to be fetched meanwhile: the same part of the next panel."""
        e, b, form = self._e, self._e.builder, self._form
        self._fetch(ahead, e.int64(0), form.codes_offset)
        group_lines = form.group_inputs // form.line_inputs
        num_lines = b.sdiv(num_inputs, e.int64(form.line_inputs))
        num_groups = b.sdiv(b.add(num_lines, e.int64(group_lines - 1)), e.int64(group_lines))
        with e.loop(e.int64(0), num_groups) as group:
            vectors_of_group = self._part_tables.of(part, group)
            first = b.mul(group, e.int64(group_lines))
            last = b.add(first, e.int64(group_lines))
            last = b.select(b.icmp_signed("<", last, num_lines), last, num_lines)
            with e.loop(first, last) as line:
                place = b.add(b.mul(line, e.int64(LINE_BYTES)), e.int64(form.codes_offset))
                self._fetch(ahead, place, LINE_BYTES)
                vectors = self._line(e.at(part, place), vectors_of_group)
                self._store(vectors, line, target)

    def _line(self, address: ir.Value, group: GroupVectors) -> list[ir.Value]:
        """Its vectors, as floats that are not rounded to the type of the rows yet."""
        b, bits = self._e.builder, self._form.bits
        lanes = b.load(b.bitcast(address, VEC_I32.as_pointer()))
        lanes.align = 64
        vectors = []
        for number in range(32 // bits):
            value = self._decoded(b.lshr(lanes, int_lanes(bits * number)) if number else lanes)
            vectors.append(scaled(self._e, self._form, value, group, number % len(group.scales)))
        return vectors

    def _decoded(self, shifted: ir.Value) -> ir.Value:
        """What the lowest bits of each lane stand for."""
        e, b, form = self._e, self._e.builder, self._form
        codes = b.and_(shifted, int_lanes((1 << form.bits) - 1))
        if form.decode == "e4m3":
            return self._float(codes)
        if form.bits == 8:
            return b.sitofp(codes, VEC)
        if has_avx512():
            # By the lowest four bits of each lane: in one instruction, where masking and converting are two.
            table = ir.Constant(VEC, list(entries(form)))
            return e.intrinsic("llvm.x86.avx512.permvar.sf.512", VEC, table, shifted)
        return b.sitofp(codes, VEC) if form.decode == "int" else looked_up(e, entries(form), codes)

    def _float(self, codes: ir.Value) -> ir.Value:
        """Of 8 bits; those without a leading one are whole numbers: as floats they would take very long."""
        e, b = self._e, self._e.builder
        magnitude = b.and_(codes, int_lanes(0x7F))
        moved = b.add(b.shl(magnitude, int_lanes(20)), int_lanes(120 << 23))
        small = b.fmul(b.sitofp(magnitude, VEC), e.splat(2.0**-9))
        is_small = b.icmp_signed("<", magnitude, int_lanes(8))
        value = b.select(is_small, b.bitcast(small, VEC_I32), moved)
        sign = b.shl(b.and_(codes, int_lanes(0x80)), int_lanes(24))
        return b.bitcast(b.or_(value, sign), VEC)

    def _store(self, vectors: Sequence[ir.Value], line: ir.Value, target: ir.Value) -> None:
        e, b, form = self._e, self._e.builder, self._form
        if form.order == "singles":
            place = b.mul(line, e.int64(len(vectors) * LANES))
            for number, vector in enumerate(vectors):
                own = e.at(target, b.add(place, e.int64(number * LANES)))
                e.store(self._rounded(vector), own, 64)
            return
        halves = [round_to_pairs(e, *vectors[at : at + 2]) for at in range(0, len(vectors), 2)]
        num_pairs = len(halves) // 2
        for number, pairs in enumerate(halves):
            pair = b.add(b.mul(line, e.int64(num_pairs)), e.int64(number // 2))
            # Of 16 columns with a pair of inputs.
            place = b.add(b.mul(pair, e.int64(2 * COLUMNS)), e.int64(number % 2 * COLUMNS))
            e.store(pairs, e.at(target, place), 64)

    def _rounded(self, vector: ir.Value) -> ir.Value:
        """As a dense weight's numbers are, in float32 again."""
        b = self._e.builder
        match self._form.dtype:
            case "bfloat16":
                return round_to_bfloat16(self._e, vector)
            case "float16":
                return b.fpext(b.fptrunc(vector, ir.VectorType(ir.HalfType(), LANES)), VEC)
            case _:
                return vector

    def _fetch(self, ahead: ir.Value, place: ir.Value, num_bytes: int) -> None:
        """Into the second-level cache, so many bytes from a place on."""
        e, b = self._e, self._e.builder
        for offset in range(0, num_bytes, LINE_BYTES):
            fetch(e, e.at(ahead, b.add(place, e.int64(offset))))
