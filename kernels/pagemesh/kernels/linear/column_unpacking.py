"""Makes numbers of a part of a packed panel, column by column: 32 inputs of a column are a row of one of AMX's tiles.

A code of 4 bits is a place in a table, which is made for each column and group of inputs: what its 16 codes stand for,
rounded as the dense weight's numbers are. One instruction then looks up 32 of them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final, NamedTuple

from llvmlite import ir

from pagemesh.kernels.jit.cpu_isa import has_avx512, has_byte_permutes
from pagemesh.kernels.jit.emit import I1, I8, I16, I64, LANES, VEC, VEC_I32, Emitter, fetch
from pagemesh.kernels.jit.pair_dots import round_to_pairs
from pagemesh.kernels.linear.packed_parts import (
    BLOCK_BYTES,
    LIFT,
    LINE_BYTES,
    PART_INPUTS,
    STEP_INPUTS,
    PackedForm,
)
from pagemesh.kernels.linear.panel_sums import COLUMNS
from pagemesh.kernels.linear.unpacking import (
    GroupVectors,
    PartTables,
    entries,
    looked_up,
    scaled,
)

PART_STEPS: Final = PART_INPUTS // STEP_INPUTS

_BYTES: Final = ir.VectorType(I8, STEP_INPUTS)
_WORDS: Final = ir.VectorType(I16, STEP_INPUTS)
_ALL_BYTES: Final = range(4 * LANES)
_VECTOR_BYTES: Final = ir.VectorType(I8, len(_ALL_BYTES))

_SHRUNK: Final = 256.0
"""By so much scales of floats of 8 bits are too large, which is exact."""


class ColumnUnpacking:
    """Emits it for one form of weights, whose order is "columns"."""

    def __init__(self, e: Emitter, form: PackedForm) -> None:
        self._e = e
        self._form = form
        self._part_tables = PartTables(e, form)
        self._block_steps = 8 // form.bits
        self._lifts = form.is_liftable and has_byte_permutes()
        is_centred = form.zero_points is None and form.minimums is None
        self._has_centred_table = is_centred and form.bits == 4 and has_avx512()
        centre = form.centre if self._has_centred_table else 0
        self._entries = ir.Constant(VEC, [entry - centre for entry in entries(form)])
        second_of_four = ir.Constant(I64, sum(1 << place for place in _ALL_BYTES if place % 4 == 1))
        # No constant where it is used: LLVM would make one instruction of two, which takes twice as long.
        self._is_code = e.builder.bitcast(second_of_four, ir.VectorType(I1, len(_ALL_BYTES)))
        size = PART_INPUTS // form.group_inputs * COLUMNS
        self._memory = [e.scratch(size) for _ in GroupVectors._fields]

    def part_place(self, part: ir.Value) -> ir.Value:
        """Where in a panel it begins, in bytes."""
        return self._e.builder.mul(part, self._e.int64(self._form.part_bytes))

    def panel_bytes(self, num_steps: ir.Value) -> ir.Value:
        """Of a panel with so many steps of 32 inputs."""
        e, b = self._e, self._e.builder
        per_part = PART_INPUTS // STEP_INPUTS
        num_parts = b.sdiv(b.add(num_steps, e.int64(per_part - 1)), e.int64(per_part))
        heads = b.mul(num_parts, e.int64(self._form.codes_offset))
        return b.add(heads, b.mul(self._num_blocks(num_steps), e.int64(BLOCK_BYTES)))

    def emit(self, part: ir.Value, ahead: ir.Value, num_steps: ir.Value, target: ir.Value) -> None:
        """From the addresses of a part, and of what is to be fetched meanwhile: the same part of the next panel.

        `target` is bfloat16 [steps, 32 columns, 32 inputs]; has room for a whole part.
        """
        e, b = self._e, self._e.builder
        opened = self.open(part, ahead)
        is_whole = b.icmp_signed("==", num_steps, e.int64(PART_STEPS))
        with b.if_else(is_whole) as (whole, rest):
            with whole:
                self.emit_whole(opened, target, lambda step: None)
            with rest:
                column_bytes = b.mul(self._num_blocks(num_steps), e.int64(STEP_INPUTS))
                with e.loop(e.int64(0), self._num_blocks(num_steps)) as block:
                    places = _Places(opened.codes, opened.ahead, target, block, column_bytes)
                    with e.loop(e.int64(0), e.int64(COLUMNS), 2) as first:
                        self._pair(places, 1, first, opened.held)

    def open(self, part: ir.Value, ahead: ir.Value) -> OpenPart:
        """What is known of a part before its codes are looked at; addresses as of `emit`."""
        e, form = self._e, self._form
        for offset in range(0, form.codes_offset, LINE_BYTES):
            fetch(e, e.at(ahead, e.int64(offset)))
        held = self._hold_numbers(part)
        codes, ahead = (e.at(each, e.int64(form.codes_offset)) for each in (part, ahead))
        return OpenPart(held, codes, ahead)

    def emit_whole(
        self, opened: OpenPart, target: ir.Value, beside: Callable[[ir.Value], None]
    ) -> None:
        """A part that has all steps. Beside each quarter of its columns is done what `beside` emits for a step."""
        e, b = self._e, self._e.builder
        num_blocks = PART_STEPS // self._block_steps
        column_bytes = e.int64(num_blocks * STEP_INPUTS)
        places = _Places(opened.codes, opened.ahead, target, e.int64(0), column_bytes)
        per_step = COLUMNS // PART_STEPS
        with e.loop(e.int64(0), e.int64(PART_STEPS)) as step:
            first = b.mul(step, e.int64(per_step))
            for pair in range(0, per_step, 2):
                self._pair(places, num_blocks, b.add(first, e.int64(pair)), opened.held)
            beside(step)

    def _num_blocks(self, num_steps: ir.Value) -> ir.Value:
        e, b, size = self._e, self._e.builder, self._block_steps
        return b.sdiv(b.add(num_steps, e.int64(size - 1)), e.int64(size))

    def _hold_numbers(self, part: ir.Value) -> _Held:
        """What codes are multiplied with: where it is from now on."""
        e = self._e
        for group in range(PART_INPUTS // self._form.group_inputs):
            found = self._numbers(part, group)
            for halves, memory in zip(found, self._memory, strict=True):
                for half, vector in enumerate(halves or ()):
                    place = e.int64(group * COLUMNS + half * LANES)
                    e.store(vector, e.at(memory, place), 64)
        scales, zeros, added = self._memory
        return _Held(scales, found.zeros and zeros, found.added and added, self._entries)

    def _numbers(self, part: ir.Value, group: int) -> GroupVectors:
        """Those of a group, for what is made of codes first."""
        e, b = self._e, self._e.builder
        found = self._part_tables.halves(part, e.int64(group))
        if self._lifts:
            lifted = e.splat(-float(LIFT + self._form.centre))
            return GroupVectors(found.scales, None, [b.fmul(each, lifted) for each in found.scales])
        if self._has_centred_table:
            return GroupVectors(found.scales, None, None)
        if self._form.decode == "e4m3":
            return found._replace(scales=[b.fmul(half, e.splat(_SHRUNK)) for half in found.scales])
        return found

    def _pair(self, places: _Places, num_blocks: int, first: ir.Value, held: _Held) -> None:
        """Two columns, which have a line for each block, of some blocks: of all of a part, or of one."""
        e, b = self._e, self._e.builder
        line = b.mul(places.block, e.int64(LINE_BYTES))
        line = b.add(b.mul(first, places.column_bytes), line)
        for index in range(2):
            # One by one: of many lines that are asked for at once, some wait, and so does what is to be loaded.
            lines = {
                turn: b.add(line, e.int64((index * num_blocks + turn) // 2 * LINE_BYTES))
                for turn in range(num_blocks)
                if (index * num_blocks + turn) % 2 == 0
            }
            fetched = {turn: e.at(places.ahead, place) for turn, place in lines.items()}
            self._column(places, num_blocks, b.add(first, e.int64(index)), held, fetched)

    def _column(
        self,
        places: _Places,
        num_blocks: int,
        column: ir.Value,
        held: _Held,
        fetched: Mapping[int, ir.Value],
    ) -> None:
        """Block after block; in front of some, a line is fetched."""
        e, b = self._e, self._e.builder
        groups = _ColumnGroups(e, self._form, held, places.block, column)
        own = b.mul(column, e.int64(STEP_INPUTS))
        source = places.in_column(e, column)
        first_step = b.mul(places.block, e.int64(self._block_steps))
        sink = b.add(b.mul(first_step, e.int64(BLOCK_BYTES)), own)
        for block in range(num_blocks):
            if block in fetched:
                fetch(e, fetched[block])
            place = b.add(source, e.int64(block * STEP_INPUTS))
            raw = b.load(b.bitcast(e.at(places.codes, place), _BYTES.as_pointer()))
            raw.align = STEP_INPUTS
            first = block * self._block_steps
            for step, pairs in enumerate(self._steps(raw, first, groups), first):
                place = b.add(sink, e.int64(step * BLOCK_BYTES))
                e.store(pairs, e.at(places.target, place), 64)

    def _steps(self, raw: ir.Value, first: int, groups: _ColumnGroups) -> list[ir.Value]:
        """Of the codes [32] of a column in a block, the pairs of each of its steps."""
        e, b, form = self._e, self._e.builder, self._form
        if form.bits == 8:
            floats = self._floats(raw) if form.decode == "e4m3" else self._whole(raw)
            return [self._rounded(floats, groups, first)]
        words = b.zext(raw, _WORDS)
        words = [words, b.lshr(words, _words(4))]
        if has_avx512():
            return self._from_tables(words, first, groups)
        words[0] = b.and_(words[0], _words(15))
        return [
            self._rounded(
                [looked_up(e, form, b.zext(half, VEC_I32)) for half in self._halves(codes)],
                groups,
                step,
            )
            for step, codes in enumerate(words, first)
        ]

    def _rounded(self, floats: Sequence[ir.Value], groups: _ColumnGroups, step: int) -> ir.Value:
        """Of what the codes of a step stand for, its pairs."""
        return round_to_pairs(
            self._e, *(groups.scaled(each, step, half) for half, each in enumerate(floats))
        )

    def _from_tables(
        self, words: Sequence[ir.Value], first: int, groups: _ColumnGroups
    ) -> list[ir.Value]:
        """By the lowest five bits of each word: 16 entries for each of two groups, or of one twice."""
        b = self._e.builder
        lower, upper = words
        if self._form.group_inputs < STEP_INPUTS:
            of_second = ir.Constant(_WORDS, [0] * LANES + [LANES] * LANES)
            lower = b.or_(b.and_(lower, _words(15)), of_second)
            upper = b.or_(upper, of_second)
            tables = [groups.table((step, 0), (step, 1)) for step in (first, first + 1)]
        elif self._form.group_inputs == STEP_INPUTS:
            # The upper codes have no fifth bit as they are.
            lower = b.or_(b.and_(lower, _words(15)), _words(LANES))
            tables = [groups.table((first + 1, 0), (first, 0))] * 2
        else:
            tables = [groups.table((first, 0), (first, 0))] * 2
        return [
            b.bitcast(self._permuted(table, each), VEC_I32)
            for table, each in zip(tables, (lower, upper), strict=True)
        ]

    def _permuted(self, table: ir.Value, places: ir.Value) -> ir.Value:
        table = self._e.builder.bitcast(table, _WORDS)
        return self._e.intrinsic("llvm.x86.avx512.permvar.hi.512", _WORDS, table, places)

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
        places = ir.Constant(_VECTOR_BYTES, [first + place // 4 for place in _ALL_BYTES])
        moved = e.intrinsic("llvm.x86.avx512.permvar.qi.512", _VECTOR_BYTES, wide, places)
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


class _Held(NamedTuple):
    """What codes are multiplied with, in memory: a float for each group and column; None where there is no such thing."""

    scales: ir.Value
    zeros: ir.Value | None
    added: ir.Value | None
    entries: ir.Constant
    """No address: the numbers of codes of 4 bits, before they are scaled."""


class OpenPart(NamedTuple):
    """A part whose codes come next."""

    held: _Held
    codes: ir.Value
    """Where they begin."""
    ahead: ir.Value
    """Where those begin that are fetched meanwhile."""


class _Places(NamedTuple):
    """Where blocks are, and where their numbers go."""

    codes: ir.Value
    """Of the first block of the part."""
    ahead: ir.Value
    target: ir.Value
    block: ir.Value
    """The first that is unpacked."""
    column_bytes: ir.Value
    """Of the codes of a column, in the part."""

    def in_column(self, e: Emitter, column: ir.Value) -> ir.Value:
        """Bytes from the part's codes to a column's of the first block."""
        b = e.builder
        of_block = b.mul(self.block, e.int64(STEP_INPUTS))
        return b.add(b.mul(column, self.column_bytes), of_block)


class _ColumnGroups:
    """What the codes of a column are multiplied with, in some blocks; each group is looked at once."""

    def __init__(
        self, e: Emitter, form: PackedForm, held: _Held, block: ir.Value, column: ir.Value
    ) -> None:
        self._e, self._form, self._held = e, form, held
        self._block, self._column = block, column
        self._groups: dict[int, GroupVectors] = {}
        self._tables: dict[tuple[int, int], ir.Value] = {}

    def scaled(self, value: ir.Value, step: int, half: int) -> ir.Value:
        """Floats that 16 codes of a step stand for; of steps behind the first of the first block."""
        group = self._group(self._number(step, half))
        return scaled(self._e, self._form, value, group, 0)

    def table(self, first: tuple[int, int], second: tuple[int, int]) -> ir.Value:
        """Of two halves of steps, all numbers that codes of 4 bits may stand for: bfloat16 [2, 16], as pairs."""
        numbers = self._number(*first), self._number(*second)
        if numbers not in self._tables:
            entries = self._held.entries
            halves = [
                scaled(self._e, self._form, entries, self._group(number), 0) for number in numbers
            ]
            self._tables[numbers] = round_to_pairs(self._e, *halves)
        return self._tables[numbers]

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
                for memory in self._held[:3]
            ]
            assert held[0] is not None
            self._groups[number] = GroupVectors(held[0], *held[1:])
        return self._groups[number]


def _words(number: int) -> ir.Constant:
    return ir.Constant(_WORDS, [number] * STEP_INPUTS)
