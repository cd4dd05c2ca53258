"""Makes numbers of the codes of a column: 32 at a time, as a row of one of AMX's tiles.

A code of 4 bits is a place in a table, which is made for each column and group of inputs: what its 16 codes stand for,
rounded as the dense weight's numbers are. One instruction then looks up 32 of them. Rounding takes longest of all this,
so that it is done once for several of them where it can be (`DigitTables`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache, partial
from typing import Final, NamedTuple, TypeAlias

from llvmlite import ir

from pagemesh.kernels.jit.cpu_isa import has_avx512, has_byte_permutes
from pagemesh.kernels.jit.emit import (
    F32,
    I1,
    I8,
    I16,
    I64,
    LANES,
    VEC,
    VEC_I32,
    Emitter,
    constant_vector,
)
from pagemesh.kernels.jit.pair_dots import round_to_pairs
from pagemesh.kernels.linear.packed_parts import LIFT, STEP_INPUTS, PackedForm
from pagemesh.kernels.linear.panel_sums import COLUMNS
from pagemesh.kernels.linear.unpacking import (
    GroupVectors,
    PartTables,
    entries,
    looked_up,
    scaled,
)

_WORDS: Final = ir.VectorType(I16, STEP_INPUTS)
_ALL_BYTES: Final = range(4 * LANES)
_VECTOR_BYTES: Final = ir.VectorType(I8, len(_ALL_BYTES))
_PERMUTE_BYTES: Final = "llvm.x86.avx512.permvar.qi.512"
_TURNED_CODE: Final = 15 << 1

_SHRUNK: Final = 256.0
"""By so much scales of floats of 8 bits are too large, which is exact."""

_DIGITS: Final = (1, 3, 5, 7)
"""A scale times these has the digits of all that it is multiplied with."""
_FACTORS: Final = tuple(range(-8, 8)) * 2
"""What it is multiplied with, in the entries of a table of two groups."""
_DIGIT_COLUMNS: Final = LANES // len(_DIGITS)

TableMaker: TypeAlias = Callable[[tuple[int, int]], ir.Value]
"""Makes the table of two groups, by their numbers behind the first of the first block."""


class ColumnCodes:
    """Emits it for one form of weights."""

    def __init__(self, e: Emitter, form: PackedForm) -> None:
        self._e = e
        self._form = form
        self._part_tables = PartTables(e, form)
        self._lifts = form.is_liftable and has_byte_permutes()
        is_centred = form.zero_points is None and form.minimums is None
        self._has_centred_table = is_centred and form.bits == 4 and has_avx512()
        shares_digits = form.shares_digits and has_byte_permutes()
        self._digit_tables = DigitTables(e) if shares_digits else None
        self.columns_at_once = _DIGIT_COLUMNS if shares_digits else 2
        centre = form.centre if self._has_centred_table else 0
        self._entries = ir.Constant(VEC, [entry - centre for entry in entries(form)])
        """What codes of 4 bits stand for, before they are scaled."""
        second_of_four = ir.Constant(I64, sum(1 << place for place in _ALL_BYTES if place % 4 == 1))
        # No constant where it is used: LLVM would make one instruction of two, which takes twice as long.
        self._is_code = e.builder.bitcast(second_of_four, ir.VectorType(I1, len(_ALL_BYTES)))

    def numbers(self, part: ir.Value, group: int) -> GroupVectors:
        """What becomes of a group's codes, when `pairs` has made numbers of them; of both halves of the columns."""
        e, b = self._e, self._e.builder
        found = self._part_tables.halves(part, e.int64(group))
        if self._lifts:
            lifted = e.splat(float(LIFT + self._form.centre))
            return GroupVectors(found.scales, None, [b.fmul(each, lifted) for each in found.scales])
        if self._has_centred_table:
            return GroupVectors(found.scales, None, None)
        if self._form.decode == "e4m3":
            return found._replace(scales=[b.fmul(half, e.splat(_SHRUNK)) for half in found.scales])
        return found

    def groups(self, held: Held, block: ir.Value, first: ir.Value) -> list[ColumnGroups]:
        """Of the columns that are unpacked at once, from the first of them on."""
        e, tables = self._e, self._digit_tables
        makers: Sequence[TableMaker | None] = [None] * self.columns_at_once
        if tables is not None:
            makers = tables.makers(held.scales, block, first)
        columns = [e.builder.add(first, e.int64(index)) for index in range(self.columns_at_once)]
        return [
            ColumnGroups(e, self._form, held, block, column, maker)
            for column, maker in zip(columns, makers, strict=True)
        ]

    def pairs(self, raw: ir.Value, first: int, groups: ColumnGroups) -> list[ir.Value]:
        """Of the codes [32] of a column in a block, the pairs of each of its steps."""
        e, b, form = self._e, self._e.builder, self._form
        if form.bits == 8:
            floats = self._floats(raw) if form.decode == "e4m3" else self._whole(raw)
            return [self._rounded(floats, groups, first)]
        if form.turns_codes:
            return self._by_bytes(raw, self._tables(first, groups))
        words = b.zext(raw, _WORDS)
        words = [words, b.lshr(words, _words(4))]
        if has_avx512():
            return self._by_words(words, self._tables(first, groups))
        words[0] = b.and_(words[0], _words(15))
        return [
            self._rounded(
                [
                    looked_up(e, entries(form), b.zext(half, VEC_I32))
                    for half in self._halves(codes)
                ],
                groups,
                step,
            )
            for step, codes in enumerate(words, first)
        ]

    def _rounded(self, floats: Sequence[ir.Value], groups: ColumnGroups, step: int) -> ir.Value:
        """Of what the codes of a step stand for, its pairs."""
        return round_to_pairs(
            self._e, *(groups.scaled(each, step, half) for half, each in enumerate(floats))
        )

    def _tables(self, first: int, groups: ColumnGroups) -> list[_StepTable]:
        """Of a block's two steps: 16 entries for each of two groups, or of one twice."""
        table, size = partial(groups.table, self._entries), self._form.group_inputs
        if size < STEP_INPUTS:
            halves = (0,) * LANES + (1,) * LANES
            return [_StepTable(table((step, 0), (step, 1)), halves) for step in (first, first + 1)]
        if size > STEP_INPUTS:
            return [_StepTable(table((first, 0), (first, 0)), None)] * 2
        # Upper codes have no fifth bit as they are.
        both = table((first + 1, 0), (first, 0))
        return [_StepTable(both, (half,) * STEP_INPUTS) for half in (1, 0)]

    def _by_words(self, words: Sequence[ir.Value], tables: Sequence[_StepTable]) -> list[ir.Value]:
        """By the lowest five bits of each."""
        e, b = self._e, self._e.builder
        pairs = []
        for step, (places, (table, halves)) in enumerate(zip(words, tables, strict=True)):
            if halves is not None:
                places = b.and_(places, _words(15)) if step == 0 else places
                places = b.or_(places, ir.Constant(_WORDS, [half * LANES for half in halves]))
            name, table = "llvm.x86.avx512.permvar.hi.512", b.bitcast(table, _WORDS)
            pairs.append(b.bitcast(e.intrinsic(name, _WORDS, table, places), VEC_I32))
        return pairs

    def _by_bytes(self, raw: ir.Value, tables: Sequence[_StepTable]) -> list[ir.Value]:
        """By the lowest six bits of each: in one instruction where words take two, one of which waits for the unit that
        makes tables."""
        e, b = self._e, self._e.builder
        wide = e.shuffle(raw, raw, [min(place, STEP_INPUTS - 1) for place in _ALL_BYTES])
        twice = constant_vector(I8, tuple(place // 2 for place in _ALL_BYTES))
        lower = e.intrinsic(_PERMUTE_BYTES, _VECTOR_BYTES, wide, twice)
        # Of four bytes that are there twice, from their fifth bits on.
        shifts = constant_vector(I8, tuple(16 * (place % 8 // 2) + 4 for place in _ALL_BYTES))
        upper = e.intrinsic("llvm.x86.avx512.pmultishift.qb.512", _VECTOR_BYTES, shifts, lower)
        pairs = []
        for places, (table, halves) in zip((lower, upper), tables, strict=True):
            assert halves is not None, "codes are turned where a step has groups of its own"
            bytes_of = tuple(half * STEP_INPUTS + byte for half in halves for byte in range(2))
            own = b.and_(places, constant_vector(I8, (_TURNED_CODE,) * len(_ALL_BYTES)))
            own = b.or_(own, constant_vector(I8, bytes_of))
            numbers = b.bitcast(table, _VECTOR_BYTES)
            pairs.append(
                b.bitcast(e.intrinsic(_PERMUTE_BYTES, _VECTOR_BYTES, numbers, own), VEC_I32)
            )
        return pairs

    def _whole(self, raw: ir.Value) -> list[ir.Value]:
        b = self._e.builder
        if self._lifts:
            return [self._lifted(raw, first) for first in (0, LANES)]
        return [b.sitofp(b.zext(half, VEC_I32), VEC) for half in self._halves(raw)]

    def _lifted(self, raw: ir.Value, first: int) -> ir.Value:
        """Codes from the first on, with LIFT added: put in their place by one instruction, where widening and converting
        are two, of which the second waits for a unit that products of tiles take."""
        e, b = self._e, self._e.builder
        wide = e.shuffle(raw, raw, [min(place, STEP_INPUTS - 1) for place in _ALL_BYTES])
        places = constant_vector(I8, tuple(first + place // 4 for place in _ALL_BYTES))
        moved = e.intrinsic(_PERMUTE_BYTES, _VECTOR_BYTES, wide, places)
        lift = b.bitcast(e.splat(float(LIFT)), _VECTOR_BYTES)
        return b.bitcast(b.select(self._is_code, moved, lift), VEC)

    def _floats(self, raw: ir.Value) -> list[ir.Value]:
        """Of 8 bits, 256 times too small, by way of halves: these have their digits, and an exponent that is less by 8.

        Numbers without a leading one are such halves, too, of which no processor makes floats more slowly.
        """
        b = self._e.builder
        # Without the second of the two copies of the sign.
        halves = b.and_(b.shl(b.sext(raw, _WORDS), _words(7)), _words(-0x4001))
        kind = ir.VectorType(ir.HalfType(), LANES)
        return [b.fpext(b.bitcast(half, kind), VEC) for half in self._halves(halves)]

    def _halves(self, codes: ir.Value) -> list[ir.Value]:
        """[32] of bytes or words: the lanes of either vector."""
        return [self._e.shuffle(codes, codes, range(first, first + LANES)) for first in (0, LANES)]


class _StepTable(NamedTuple):
    """Where the numbers of a step's 32 inputs are looked up."""

    table: ir.Value
    halves: Sequence[int] | None
    """Of the table, for each input; None where both are alike."""


class Held(NamedTuple):
    """What codes are multiplied with, in memory: a float for each group and column; None where there is no such thing."""

    scales: ir.Value
    zeros: ir.Value | None
    subtracted: ir.Value | None


class ColumnGroups:
    """What the codes of a column are multiplied with, in some blocks; each group is looked at once."""

    def __init__(
        self,
        e: Emitter,
        form: PackedForm,
        held: Held,
        block: ir.Value,
        column: ir.Value,
        make_table: TableMaker | None,
    ) -> None:
        """Where there is `make_table`, it makes the tables."""
        self._e, self._form, self._held = e, form, held
        self._block, self._column = block, column
        self._make_table = make_table
        self._groups: dict[int, GroupVectors] = {}
        self._tables: dict[tuple[int, int], ir.Value] = {}

    def scaled(self, value: ir.Value, step: int, half: int) -> ir.Value:
        """Floats that 16 codes of a step stand for; of steps behind the first of the first block."""
        group = self._group(self._number(step, half))
        return scaled(self._e, self._form, value, group, 0)

    def table(self, entries: ir.Value, first: tuple[int, int], second: tuple[int, int]) -> ir.Value:
        """Of two halves of steps, all numbers that codes of 4 bits may stand for: bfloat16 [2, 16], as pairs.

        `entries` are these before they are scaled.
        """
        numbers = self._number(*first), self._number(*second)
        if numbers not in self._tables:
            make = self._make_table or partial(self._rounded_table, entries)
            self._tables[numbers] = make(numbers)
        return self._tables[numbers]

    def _rounded_table(self, entries: ir.Value, numbers: tuple[int, int]) -> ir.Value:
        halves = [
            scaled(self._e, self._form, entries, self._group(number), 0) for number in numbers
        ]
        return round_to_pairs(self._e, *halves)

    def _number(self, step: int, half: int) -> int:
        """Of the group, from that of the first block on."""
        return (step * STEP_INPUTS + half * LANES) // self._form.group_inputs

    def _group(self, number: int) -> GroupVectors:
        if number not in self._groups:
            e, b, form = self._e, self._e.builder, self._form
            first = b.mul(self._block, e.int64(STEP_INPUTS * 8 // form.bits))
            group = b.add(b.sdiv(first, e.int64(form.group_inputs)), e.int64(number))
            place = b.add(b.mul(group, e.int64(COLUMNS)), self._column)
            held = [
                None if memory is None else [e.broadcast(b.load(e.at(memory, place)))]
                for memory in self._held
            ]
            assert held[0] is not None
            self._groups[number] = GroupVectors(held[0], *held[1:])
        return self._groups[number]


class DigitTables:
    """Makes tables of two groups of 32 inputs whose codes stand for a scale times -8 to 7, for four columns at once.

    Four of these products are rounded, and the others made of those: by a power of two, a sign, or as 0. No scale may be
    so small or so large that this is not the same; what is scaled by 0 is 0 in either way if its codes stand for 0.
    """

    def __init__(self, e: Emitter) -> None:
        self._e = e
        factors = [float(digit) for digit in _DIGITS for _ in range(_DIGIT_COLUMNS)]
        self._digits = ir.Constant(VEC, factors)
        self._finish = constant_vector(I16, tuple(_finish(factor) for factor in _FACTORS))
        self._places = [_places(column) for column in range(_DIGIT_COLUMNS)]
        not_zero = ir.Constant(I64, sum(3 << 2 * i for i, factor in enumerate(_FACTORS) if factor))
        # No constant where it is used, as for `ColumnCodes`.
        self._not_zero = e.builder.bitcast(not_zero, ir.VectorType(I1, len(_ALL_BYTES)))

    def makers(self, scales: ir.Value, block: ir.Value, first: ir.Value) -> list[TableMaker]:
        """Of the tables of each column from the first on, in blocks of two groups from one on. `scales` are as in `Held`."""
        e, b = self._e, self._e.builder
        place = b.add(b.mul(block, e.int64(2 * COLUMNS)), first)
        rounded = cache(partial(self._rounded, e.at(scales, place)))

        def make(column: int, numbers: tuple[int, int]) -> ir.Value:
            return self._table(rounded(numbers), self._places[column])

        return [partial(make, column) for column in range(_DIGIT_COLUMNS)]

    def _rounded(self, scales: ir.Value, numbers: tuple[int, int]) -> ir.Value:
        """Of two groups, all that is rounded: bfloat16 [2, digits, columns], as bytes."""
        e, b = self._e, self._e.builder
        halves = []
        for number in numbers:
            place = e.at(scales, e.int64(number * COLUMNS))
            four = b.load(b.bitcast(place, ir.VectorType(F32, _DIGIT_COLUMNS).as_pointer()))
            four.align = 4 * _DIGIT_COLUMNS
            spread = e.shuffle(four, four, [lane % _DIGIT_COLUMNS for lane in range(LANES)])
            halves.append(b.fmul(self._digits, spread))
        return b.bitcast(round_to_pairs(e, *halves), _VECTOR_BYTES)

    def _table(self, rounded: ir.Value, places: ir.Value) -> ir.Value:
        """Of what is rounded, that of a column: bfloat16 [2, 16], as pairs."""
        e, b = self._e, self._e.builder
        moved = e.intrinsic(_PERMUTE_BYTES, _VECTOR_BYTES, rounded, places)
        digits = b.select(self._not_zero, moved, ir.Constant(_VECTOR_BYTES, None))
        return b.bitcast(b.add(b.bitcast(digits, _WORDS), self._finish), VEC_I32)


def _places(column: int) -> ir.Constant:
    """Of the bytes of a table, in what is rounded."""
    words = [
        (group * len(_DIGITS) + _DIGITS.index(_odd_part(factor))) * _DIGIT_COLUMNS + column
        for group, factors in enumerate((_FACTORS[:LANES], _FACTORS[LANES:]))
        for factor in factors
    ]
    return constant_vector(I8, tuple(2 * word + byte for word in words for byte in range(2)))


def _finish(factor: int) -> int:
    """What is added to the bits of a product with a factor's odd part: to its exponent and its sign; nothing to those of 0."""
    power = (abs(factor) // _odd_part(factor)).bit_length()
    return (max(power - 1, 0) << 7) - (1 << 15 if factor < 0 else 0)


def _odd_part(factor: int) -> int:
    """1 of 0, whose digits nobody looks at."""
    size = abs(factor) or 1
    return size // (size & -size)


def _words(number: int) -> ir.Constant:
    return constant_vector(I16, (number,) * STEP_INPUTS)
