"""Matmuls of bfloat16 rows with a packed weight on AMX's tiles: the bits of those of `tile_kernel` with what it stands for.

Roles are changed there: the left-hand tile of a product are 16 columns of the weight with 32 inputs each, as unpacking
leaves them, and the right-hand one the pairs of up to 16 rows. What is multiplied with what, and added in which order,
stays the same. A part of a panel is multiplied with all rows of a chunk: with two blocks of 32 while the next part is
unpacked, with others behind that. Sums of one block alone stay in the registers from a panel's first part to its last.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Final, NamedTuple, TypeAlias

from llvmlite import ir

from pagemesh.kernels.gated_activation.interface import Gate
from pagemesh.kernels.jit.compiled import kernel
from pagemesh.kernels.jit.emit import F32, I8, I16, I64, Emitter, each_item, transposed
from pagemesh.kernels.jit.tile_registers import TILE_BYTES, TILE_ROWS, tile_registers
from pagemesh.kernels.linear.column_unpacking import PART_STEPS, ColumnUnpacking
from pagemesh.kernels.linear.packed_parts import PART_INPUTS, PackedForm
from pagemesh.kernels.linear.panel_sums import COLUMNS, PanelEpilogue
from pagemesh.kernels.linear.tile_items import (
    BLOCK_ROWS,
    ITEM_ARGUMENTS,
    MAX_ITEM_PANELS,
    ItemPlaces,
    TileItem,
)

_STEP_BYTES: Final = COLUMNS * TILE_BYTES
"""Of a panel's numbers per step."""
_SQUARE: Final = TILE_ROWS * TILE_ROWS
_PART_NUMBERS: Final = PART_INPUTS * COLUMNS

ARGUMENTS: Final[Mapping[str, ir.Type | None]] = {
    **ITEM_ARGUMENTS,
    "num_steps": None,  # of 32 inputs
    "num_columns": None,  # of the output
    "weight": I8,  # uint8 [panels, bytes], in parts
    "bias": F32,  # [panels, 32]
    "inputs": I8,  # of `paired`
    "output": I16,
    "output_stride": None,  # elements, as the residual's
    "residual": I16,  # like the output, or null
    "residual_stride": None,
}

_Move: TypeAlias = Callable[[int, ir.Value, ir.Value], None]

# Registers: sums of columns 0-15 and 16-31 by rows 0-15 and 16-31, the columns, the rows.
_SUMS, _LEFT, _RIGHT = ((0, 1), (2, 3)), (4, 5), (6, 7)


@kernel("packed_tiles")
def compile_packed_tiles(e: Emitter, gate: Gate | None, form: PackedForm) -> None:
    """The kernel, for a weight of gates and ups or for a plain one; the form's order is "columns"."""
    _PackedTileKernel(e, gate, form).emit()


class _Block(NamedTuple):
    """Up to 32 rows."""

    first_row: ir.Value
    """Of all rows, a multiple of 32."""
    widths: tuple[ir.Value, ir.Value]
    """Of its tiles; 0 if the second has none."""
    is_alone: ir.Value
    """Whether it is one row, and all of its chunk."""
    sums: ir.Value
    """float32, a square for each tile of rows and half of the columns; in it, a row for each column."""


class _Chunk(NamedTuple):
    """Rows of an item."""

    begin: ir.Value
    end: ir.Value
    num_blocks: ir.Value
    sums: ir.Value
    """Of the first of them with the panel."""


class _Beside(NamedTuple):
    """What is emitted for the part before the one that is unpacked, by its number and a turn's."""

    num_turns: int
    begin: Callable[[ir.Value, ir.Value], None]
    midway: Callable[[ir.Value, ir.Value], None]
    end: Callable[[ir.Value], None] | None = None
    """Behind all turns."""


class _PackedTileKernel:
    def __init__(self, e: Emitter, gate: Gate | None, form: PackedForm) -> None:
        self.e, self.b = e, e.builder
        self.unpacking = ColumnUnpacking(e, form)
        self.parts = e.scratch(2 * _PART_NUMBERS, I16)
        self.tiles = tile_registers(e)
        self.argument = {
            name: e.argument(index, kind) for index, (name, kind) in enumerate(ARGUMENTS.items())
        }
        self.items = ItemPlaces(e, self.argument)
        self.rows = e.scratch(MAX_ITEM_PANELS * TILE_ROWS * COLUMNS)
        self.configured = e.scratch(1, I64)
        self.epilogue = PanelEpilogue(e, gate, "bfloat16", self.argument, is_int8=False)

    def emit(self) -> None:
        """Take items until none is left."""
        self.b.store(self.e.int64(0), self.configured)
        each_item(self.e, self.argument["num_items"], self._item)
        self.tiles.release()
        self.b.ret_void()

    def _item(self, number: ir.Value, next_number: ir.Value) -> None:
        e = self.e
        item, next_item = self.items.of(number), self.items.of(next_number)
        first, last = item.panels
        with e.loop(first, last) as panel:
            fetched = self.items.following(panel, item, next_item)
            self._multiply_panel(panel, fetched, item.rows, self.items.sums(panel, first))
        self._finish(item)

    def _multiply_panel(
        self,
        panel: ir.Value,
        fetched: ir.Value,
        rows: tuple[ir.Value, ir.Value],
        sums: ir.Value,
    ) -> None:
        """Part after part of a panel, each with all rows of a chunk."""
        e, b = self.e, self.b
        begin, end = rows
        num_blocks = self.items.ceil(b.sub(end, begin), e.int64(BLOCK_ROWS))
        chunk = _Chunk(begin, end, num_blocks, sums)
        panel_bytes = self.unpacking.panel_bytes(self.argument["num_steps"])
        weight, ahead = (
            e.at(self.argument["weight"], b.mul(each, panel_bytes)) for each in (panel, fetched)
        )
        with b.if_else(b.icmp_signed("==", num_blocks, e.int64(1))) as (alone, shared):
            with alone:
                only = self._block(chunk, e.int64(0))
                self._configure(only)
                self._each_sum(only, lambda tile, *_: self.tiles.zero(tile))
                load = partial(self._load_step, only)
                beside = _Beside(PART_STEPS, load, lambda *_: self._multiply_step(only))
                self._each_part((weight, ahead), beside, partial(self._multiply, only))
                self._each_sum(only, self.tiles.store)
            with shared:
                self._multiply_chunk((weight, ahead), chunk)

    def _multiply_chunk(self, weights: tuple[ir.Value, ir.Value], chunk: _Chunk) -> None:
        """Add a panel to the sums of several blocks: two of them while the next part is unpacked, then the others.

        The two take turns forth and back: where there are no others, sums of one stay in their tiles from part to part.
        """
        e, b = self.e, self.b
        num_whole = b.sdiv(self.argument["num_steps"], e.int64(PART_STEPS))
        has_others = b.icmp_signed(">", chunk.num_blocks, e.int64(2))

        def block_of(before: ir.Value, turn: ir.Value) -> _Block:
            is_second = b.xor(b.sdiv(turn, e.int64(PART_STEPS)), b.and_(before, e.int64(1)))
            return self._block(chunk, is_second)

        def begin(before: ir.Value, turn: ir.Value) -> None:
            block = block_of(before, turn)
            is_first_part = b.icmp_signed("==", before, e.int64(0))
            is_first = b.icmp_signed("==", turn, e.int64(0))
            is_other = b.icmp_signed("==", turn, e.int64(PART_STEPS))
            with b.if_then(is_other):
                self._each_sum(block_of(before, e.int64(0)), self.tiles.store)
            begins = b.and_(is_first, b.or_(is_first_part, has_others))
            with b.if_then(b.or_(begins, is_other)):
                self._configure(block)
                self._take_sums(block, before)
            self._load_step(block, before, b.srem(turn, e.int64(PART_STEPS)))

        def multiply(before: ir.Value, turn: ir.Value) -> None:
            self._multiply_step(block_of(before, turn))

        def multiply_blocks(first: int, part: ir.Value, num_steps: ir.Value) -> None:
            with e.loop(e.int64(first), chunk.num_blocks) as number:
                block = self._block(chunk, number)
                self._configure(block)
                self._take_sums(block, part)
                self._multiply(block, part, num_steps)
                self._each_sum(block, self.tiles.store)

        def end(before: ir.Value) -> None:
            is_last = b.icmp_signed("==", before, b.sub(num_whole, e.int64(2)))
            with b.if_then(b.or_(is_last, has_others)):
                self._each_sum(block_of(before, e.int64(PART_STEPS)), self.tiles.store)
                multiply_blocks(2, before, e.int64(PART_STEPS))

        beside = _Beside(2 * PART_STEPS, begin, multiply, end)
        self._each_part(weights, beside, partial(multiply_blocks, 0))

    def _each_part(
        self,
        weights: tuple[ir.Value, ir.Value],
        beside: _Beside,
        multiply: Callable[[ir.Value, ir.Value], None],
    ) -> None:
        """Unpack a panel, part after part, and multiply the part before meanwhile; `weights` are its address and that from
        which its like is fetched, and `multiply` emits what becomes of the steps of a part behind which none is unpacked."""
        e, b = self.e, self.b
        num_steps, one = self.argument["num_steps"], e.int64(1)
        num_whole = b.sdiv(num_steps, e.int64(PART_STEPS))
        with e.loop(e.int64(0), num_whole) as part:
            opened = self.unpacking.open(*weights, part)
            before = b.sub(part, one)
            has_before = b.icmp_signed(">=", before, e.int64(0))

            def each_turn(emit: Callable[[ir.Value, ir.Value], None], turn: ir.Value) -> None:
                with b.if_then(has_before):
                    emit(before, turn)

            self.unpacking.emit_beside(
                opened,
                self._part(part),
                beside.num_turns,
                partial(each_turn, beside.begin),
                partial(each_turn, beside.midway),
            )
            if beside.end is not None:
                with b.if_then(has_before):
                    beside.end(before)
        last = b.sub(num_whole, one)
        with b.if_then(b.icmp_signed(">=", last, e.int64(0))):
            multiply(last, e.int64(PART_STEPS))
        rest = b.srem(num_steps, e.int64(PART_STEPS))
        with b.if_then(b.icmp_signed(">", rest, e.int64(0))):
            opened = self.unpacking.open(*weights, num_whole)
            self.unpacking.emit(opened, self._part(num_whole), rest)
            multiply(num_whole, rest)

    def _part(self, number: ir.Value) -> ir.Value:
        """Where a part is unpacked, by turns: what was just stored cannot be loaded into a tile at once."""
        place = self.b.and_(number, self.e.int64(1))
        return self.e.at(self.parts, self.b.mul(place, self.e.int64(_PART_NUMBERS)))

    def _block(self, chunk: _Chunk, number: ir.Value) -> _Block:
        e, b = self.e, self.b
        own = b.mul(number, e.int64(BLOCK_ROWS))
        first = b.add(chunk.begin, own)
        num_rows = self.items.least(b.sub(chunk.end, first), e.int64(BLOCK_ROWS))
        upper = self.items.least(num_rows, e.int64(TILE_ROWS))
        return _Block(
            first_row=first,
            widths=(upper, b.sub(num_rows, upper)),
            is_alone=b.icmp_signed("==", b.sub(chunk.end, chunk.begin), e.int64(1)),
            sums=e.at(chunk.sums, b.mul(own, e.int64(COLUMNS))),
        )

    def _configure(self, block: _Block) -> None:
        """Unless it is as it must be already: it takes as long as ten products."""
        e, b = self.e, self.b
        upper, rest = block.widths
        num_rows = b.add(upper, rest)
        with b.if_then(b.icmp_signed("!=", b.load(self.configured), num_rows)):
            b.store(num_rows, self.configured)
            full = e.int64(TILE_ROWS)
            is_none = b.icmp_signed("==", rest, e.int64(0))
            lower = b.select(is_none, e.int64(1), rest)
            widths = [upper, lower, upper, lower, full, full, upper, lower]
            self.tiles.configure([full] * len(widths), widths)

    def _take_sums(self, block: _Block, part: ir.Value) -> None:
        """Those of the parts before."""
        with self.b.if_else(self.b.icmp_signed("==", part, self.e.int64(0))) as (begins, goes_on):
            with begins:
                self._each_sum(block, lambda tile, *_: self.tiles.zero(tile))
            with goes_on:
                self._each_sum(block, self.tiles.load)

    def _each_sum(self, block: _Block, move: _Move) -> None:
        """move(tile, its place in memory, bytes from row to row); the sums of a row that is alone lie side by side."""
        e, b = self.e, self.b
        stride = b.select(block.is_alone, e.int64(4), e.int64(TILE_BYTES))
        size = b.select(block.is_alone, e.int64(TILE_ROWS), e.int64(_SQUARE))
        for half in range(2):
            move(_SUMS[half][0], e.at(block.sums, b.mul(size, e.int64(half))), stride)
        with b.if_then(b.icmp_signed(">", block.widths[1], e.int64(0))):
            for half in range(2):
                place = e.at(block.sums, e.int64((2 + half) * _SQUARE))
                move(_SUMS[half][1], place, e.int64(TILE_BYTES))

    def _multiply(self, block: _Block, part: ir.Value, num_steps: ir.Value) -> None:
        """Add steps of a part to the sums of one or two tiles of rows."""
        with self.e.loop(self.e.int64(0), num_steps) as step:
            self._load_step(block, part, step)
            self._multiply_step(block)

    def _load_step(self, block: _Block, part: ir.Value, step: ir.Value) -> None:
        """Its columns and rows."""
        e, b = self.e, self.b
        place = b.mul(step, e.int64(_STEP_BYTES // 2))
        left = b.bitcast(e.at(self._part(part), place), I8.as_pointer())
        for half in range(2):
            own = e.at(left, e.int64(half * TILE_ROWS * TILE_BYTES))
            self.tiles.load(_LEFT[half], own, e.int64(TILE_BYTES))
        number = b.add(b.mul(part, e.int64(PART_STEPS)), step)

        def load(tile: int) -> None:
            width = block.widths[tile]
            row_bytes = b.mul(self.argument["num_steps"], e.int64(TILE_BYTES))
            own = b.add(block.first_row, e.int64(tile * TILE_ROWS))
            begin = b.add(b.mul(own, row_bytes), b.mul(number, b.mul(width, e.int64(TILE_BYTES))))
            right = e.at(self.argument["inputs"], begin)
            self.tiles.load(_RIGHT[tile], right, b.mul(width, e.int64(4)))

        load(0)
        with b.if_then(b.icmp_signed(">", block.widths[1], e.int64(0))):
            load(1)

    def _multiply_step(self, block: _Block) -> None:
        """The one that is loaded."""

        def multiply(tile: int) -> None:
            for half in range(2):
                self.tiles.multiply(_SUMS[half][tile], _LEFT[half], _RIGHT[tile])

        multiply(0)
        with self.b.if_then(self.b.icmp_signed(">", block.widths[1], self.e.int64(0))):
            multiply(1)

    def _finish(self, item: TileItem) -> None:
        """Write its outputs."""
        e, b = self.e, self.b
        (first, last), (begin, end) = item
        is_one = b.icmp_signed("==", b.sub(end, begin), e.int64(1))
        with b.if_else(is_one) as (alone, shared):
            with alone, e.loop(first, last) as panel:
                self.epilogue.finish(begin, panel, self.items.sums(panel, first))
            with shared, e.loop(begin, end, TILE_ROWS) as tile:
                with e.loop(first, last) as panel:
                    own = b.mul(b.sub(tile, begin), e.int64(COLUMNS))
                    target = b.mul(b.sub(panel, first), e.int64(TILE_ROWS * COLUMNS))
                    squares = e.at(self.items.sums(panel, first), own)
                    _turn(e, squares, e.at(self.rows, target))
                tile_end = self.items.least(b.add(tile, e.int64(TILE_ROWS)), end)
                with e.loop(tile, tile_end) as row, e.loop(first, last) as panel:
                    own = b.mul(b.sub(panel, first), e.int64(TILE_ROWS))
                    place = b.mul(b.add(own, b.sub(row, tile)), e.int64(COLUMNS))
                    self.epilogue.finish(row, panel, e.at(self.rows, place))


def _turn(e: Emitter, squares: ir.Value, target: ir.Value) -> None:
    """Of a tile of rows, the sums with a panel: row by row."""
    for half in range(2):
        begin = half * _SQUARE
        lines = [
            e.load(e.at(squares, e.int64(begin + line * TILE_ROWS)), 64)
            for line in range(TILE_ROWS)
        ]
        for row, vector in enumerate(transposed(e, lines)):
            e.store(vector, e.at(target, e.int64(row * COLUMNS + half * TILE_ROWS)), 64)
