"""Makes numbers of a part of a packed panel, column by column: 32 inputs of a column are a row of one of AMX's tiles.

A code of 4 bits is a place in a table, which is made for each column and group of inputs: what its 16 codes stand for,
rounded as the dense weight's numbers are. One instruction then looks up 32 of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from llvmlite import ir

from pagemesh.kernels.jit.cpu_isa import has_avx512
from pagemesh.kernels.jit.emit import I8, I16, LANES, VEC, VEC_I32, Emitter, fetch
from pagemesh.kernels.jit.pair_dots import round_to_pairs
from pagemesh.kernels.linear.packed_parts import (
    BLOCK_BYTES,
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

_BYTES: Final = ir.VectorType(I8, STEP_INPUTS)
_WORDS: Final = ir.VectorType(I16, STEP_INPUTS)

_SHRUNK: Final = 256.0
"""By so much scales of floats of 8 bits are too large, which is exact."""

_NEAR_BYTES: Final = 2048
"""So far ahead lines are fetched once more, into the first-level cache: without, unpacking waits for the second."""


class ColumnUnpacking:
    """Emits it for one form of weights, whose order is "columns"."""

    def __init__(self, e: Emitter, form: PackedForm) -> None:
        self._e = e
        self._form = form
        self._part_tables = PartTables(e, form)
        self._block_steps = 8 // form.bits
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
        e, b, form = self._e, self._e.builder, self._form
        for offset in range(0, form.codes_offset, LINE_BYTES):
            fetch(e, e.at(ahead, e.int64(offset)))
        held = self._hold_numbers(part)
        codes, ahead = (e.at(each, e.int64(form.codes_offset)) for each in (part, ahead))
        per_part = PART_INPUTS // STEP_INPUTS
        is_whole = b.icmp_signed("==", num_steps, e.int64(per_part))
        with b.if_else(is_whole) as (whole, rest):
            with whole:
                num_blocks = per_part // self._block_steps
                column_bytes = e.int64(num_blocks * STEP_INPUTS)
                places = _Places(codes, ahead, target, e.int64(0), column_bytes)
                self._columns(places, num_blocks, held)
            with rest:
                column_bytes = b.mul(self._num_blocks(num_steps), e.int64(STEP_INPUTS))
                with e.loop(e.int64(0), self._num_blocks(num_steps)) as block:
                    places = _Places(codes, ahead, target, block, column_bytes)
                    self._columns(places, 1, held)

    def _num_blocks(self, num_steps: ir.Value) -> ir.Value:
        e, b, size = self._e, self._e.builder, self._block_steps
        return b.sdiv(b.add(num_steps, e.int64(size - 1)), e.int64(size))

    def _hold_numbers(self, part: ir.Value) -> _Held:
        """What codes are multiplied with: where it is from now on."""
        e = self._e
        for group in range(PART_INPUTS // self._form.group_inputs):
            found = self._part_tables.halves(part, e.int64(group))
            if self._form.decode == "e4m3":
                scales = [e.builder.fmul(half, e.splat(_SHRUNK)) for half in found.scales]
                found = found._replace(scales=scales)
            for halves, memory in zip(found, self._memory, strict=True):
                for half, vector in enumerate(halves or ()):
                    place = e.int64(group * COLUMNS + half * LANES)
                    e.store(vector, e.at(memory, place), 64)
        scales, zeros, added = self._memory
        return _Held(scales, found.zeros and zeros, found.added and added)

    def _columns(self, places: _Places, num_blocks: int, held: _Held) -> None:
        """All columns of some blocks: of all of a part, or of one."""
        e, b = self._e, self._e.builder
        with e.loop(e.int64(0), e.int64(COLUMNS), 2) as first:
            # Two columns have a line for each block.
            line = b.mul(places.block, e.int64(LINE_BYTES))
            line = b.add(b.mul(first, places.column_bytes), line)
            for number in range(num_blocks):
                place = b.add(line, e.int64(number * LINE_BYTES))
                fetch(e, e.at(places.ahead, place))
                fetch(e, e.at(places.codes, b.add(place, e.int64(_NEAR_BYTES))), level=1)
            for column in (first, b.add(first, e.int64(1))):
                self._column(places, num_blocks, column, held)

    def _column(self, places: _Places, num_blocks: int, column: ir.Value, held: _Held) -> None:
        e, b = self._e, self._e.builder
        groups = _ColumnGroups(e, self._form, held, places.block, column)
        own = b.mul(column, e.int64(STEP_INPUTS))
        source = places.in_column(e, column)
        first_step = b.mul(places.block, e.int64(self._block_steps))
        sink = b.add(b.mul(first_step, e.int64(BLOCK_BYTES)), own)
        for block in range(num_blocks):
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
        return [b.sitofp(b.zext(half, VEC_I32), VEC) for half in self._halves(raw)]

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
            codes = ir.Constant(VEC, list(entries(self._form)))
            halves = [
                scaled(self._e, self._form, codes, self._group(number), 0) for number in numbers
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
                for memory in self._held
            ]
            assert held[0] is not None
            self._groups[number] = GroupVectors(held[0], *held[1:])
        return self._groups[number]


def _words(number: int) -> ir.Constant:
    return ir.Constant(_WORDS, [number] * STEP_INPUTS)
