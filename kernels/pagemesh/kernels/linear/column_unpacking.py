"""Makes numbers of a part of a packed panel, column by column: 32 inputs of a column are a row of one of AMX's tiles."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Final, NamedTuple

from llvmlite import ir

from pagemesh.kernels.jit.emit import I8, LANES, Emitter, fetch
from pagemesh.kernels.linear.column_codes import ColumnCodes, ColumnGroups, Held
from pagemesh.kernels.linear.packed_parts import (
    BLOCK_BYTES,
    LINE_BYTES,
    PART_INPUTS,
    STEP_INPUTS,
    PackedForm,
)
from pagemesh.kernels.linear.panel_sums import COLUMNS
from pagemesh.kernels.linear.unpacking import GroupVectors

PART_STEPS: Final = PART_INPUTS // STEP_INPUTS

_BYTES: Final = ir.VectorType(I8, STEP_INPUTS)


class ColumnUnpacking:
    """Emits it for one form of weights, whose order is "columns"."""

    def __init__(self, e: Emitter, form: PackedForm) -> None:
        self._e = e
        self._form = form
        self._codes = ColumnCodes(e, form)
        self._block_steps = 8 // form.bits
        size = PART_INPUTS // form.group_inputs * COLUMNS
        self._memory = [e.scratch(size) for _ in GroupVectors._fields]

    def panel_bytes(self, num_steps: ir.Value) -> ir.Value:
        """Of a panel with so many steps of 32 inputs."""
        e, b = self._e, self._e.builder
        num_parts = b.sdiv(b.add(num_steps, e.int64(PART_STEPS - 1)), e.int64(PART_STEPS))
        heads = b.mul(num_parts, e.int64(self._form.codes_offset))
        return b.add(heads, b.mul(self._num_blocks(num_steps), e.int64(BLOCK_BYTES)))

    def open(self, panel: ir.Value, ahead: ir.Value, number: ir.Value) -> OpenPart:
        """A part, from the addresses of its panel and of that from which its like is to be fetched meanwhile."""
        e, form = self._e, self._form
        place = e.builder.mul(number, e.int64(form.part_bytes))
        part, ahead = e.at(panel, place), e.at(ahead, place)
        for offset in range(0, form.codes_offset, LINE_BYTES):
            fetch(e, e.at(ahead, e.int64(offset)))
        held = self._hold_numbers(part)
        codes, ahead = (e.at(each, e.int64(form.codes_offset)) for each in (part, ahead))
        return OpenPart(held, codes, ahead)

    def emit(self, opened: OpenPart, target: ir.Value, num_steps: ir.Value) -> None:
        """A part of any number of steps, block after block; `target` is bfloat16 [steps, 32 columns, 32 inputs], with room
        for a whole one."""
        e, b = self._e, self._e.builder
        column_bytes = b.mul(self._num_blocks(num_steps), e.int64(STEP_INPUTS))
        with e.loop(e.int64(0), self._num_blocks(num_steps)) as block:
            places = _Places(opened.codes, opened.ahead, target, block, column_bytes)
            with e.loop(e.int64(0), e.int64(COLUMNS), self._codes.columns_at_once) as first:
                for emit_column in self._columns(places, 1, first, opened.held):
                    emit_column()

    def emit_beside(
        self,
        opened: OpenPart,
        target: ir.Value,
        num_turns: int,
        begin: Callable[[ir.Value], None],
        midway: Callable[[ir.Value], None],
    ) -> None:
        """A part that has all steps, in turns of as many columns each: of a turn, by its number, `begin` emits what is done
        before it, and `midway` what is done between its halves.

        So `begin` may load tiles and `midway` multiply them: one right behind the other, everything else waits for both.
        """
        e, b = self._e, self._e.builder
        num_blocks = PART_STEPS // self._block_steps
        column_bytes = e.int64(num_blocks * STEP_INPUTS)
        places = _Places(opened.codes, opened.ahead, target, e.int64(0), column_bytes)
        size, at_once = COLUMNS // num_turns, self._codes.columns_at_once
        with e.loop(e.int64(0), e.int64(num_turns)) as turn:
            begin(turn)
            for index in range(0, size, at_once):
                first = b.add(b.mul(turn, e.int64(size)), e.int64(index))
                columns = self._columns(places, num_blocks, first, opened.held)
                for column, emit_column in enumerate(columns, index):
                    if column == size // 2:
                        midway(turn)
                    emit_column()

    def _num_blocks(self, num_steps: ir.Value) -> ir.Value:
        e, b, size = self._e, self._e.builder, self._block_steps
        return b.sdiv(b.add(num_steps, e.int64(size - 1)), e.int64(size))

    def _hold_numbers(self, part: ir.Value) -> Held:
        """What codes are multiplied with: where it is from now on."""
        e = self._e
        for group in range(PART_INPUTS // self._form.group_inputs):
            found = self._codes.numbers(part, group)
            for halves, memory in zip(found, self._memory, strict=True):
                for half, vector in enumerate(halves or ()):
                    place = e.int64(group * COLUMNS + half * LANES)
                    e.store(vector, e.at(memory, place), 64)
        scales, zeros, subtracted = self._memory
        return Held(scales, found.zeros and zeros, found.subtracted and subtracted)

    def _columns(
        self, places: _Places, num_blocks: int, first: ir.Value, held: Held
    ) -> list[Callable[[], None]]:
        """What emits one after the other of those that are unpacked at once, of some blocks: of all of a part, or of one."""
        e, b = self._e, self._e.builder
        size = self._codes.columns_at_once * STEP_INPUTS
        own = b.add(b.mul(first, places.column_bytes), b.mul(places.block, e.int64(size)))
        line = e.at(places.ahead, own)

        def emit(index: int, groups: ColumnGroups) -> None:
            column = b.add(first, e.int64(index))
            for block in range(num_blocks):
                # One by one: of many lines that are asked for at once some wait, and so does what is to be loaded.
                number, is_odd = divmod(index * num_blocks + block, 2)
                if not is_odd:
                    fetch(e, e.at(line, e.int64(number * LINE_BYTES)))
                self._block(places, block, column, groups)

        all_groups = self._codes.groups(held, places.block, first)
        return [partial(emit, *numbered) for numbered in enumerate(all_groups)]

    def _block(self, places: _Places, block: int, column: ir.Value, groups: ColumnGroups) -> None:
        """Of a column, a block behind the first that is unpacked."""
        e, b = self._e, self._e.builder
        own = b.mul(column, e.int64(STEP_INPUTS))
        source = places.in_column(e, column)
        first_step = b.mul(places.block, e.int64(self._block_steps))
        sink = b.add(b.mul(first_step, e.int64(BLOCK_BYTES)), own)
        place = b.add(source, e.int64(block * STEP_INPUTS))
        raw = b.load(b.bitcast(e.at(places.codes, place), _BYTES.as_pointer()))
        raw.align = STEP_INPUTS
        first = block * self._block_steps
        for step, pairs in enumerate(self._codes.pairs(raw, first, groups), first):
            place = b.add(sink, e.int64(step * BLOCK_BYTES))
            e.store(pairs, e.at(places.target, place), 64)


class OpenPart(NamedTuple):
    """A part whose codes come next."""

    held: Held
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
