"""Matmuls of rows with a weight in panels on AMX's tiles, of bfloat16 or of whole numbers; every row's sums are
added in one order.

A panel is 32 columns of the weight: for each step of 32 inputs two tiles [16 pairs, 16 columns, 2], side by
side, so that it is read from front to back; of whole numbers, for 64 inputs [16 times four, 16 columns, 4]. An item is some panels, one after the other, and a chunk of rows,
which go 32 at a time: two tiles of rows, two of the weight, four of sums. What a row gets of all its panels is
written at once. However many rows there are, each step is one tile product that is added to the sum, so that
a row's bits do not depend on its company; nor do they on whether sums wait in memory while other rows are
multiplied with the same part of a panel.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final, NamedTuple

from llvmlite import ir

from pagemesh.kernels.gated_activation.interface import Gate
from pagemesh.kernels.jit.compiled import kernel
from pagemesh.kernels.jit.elements import ELEMENT_TYPES
from pagemesh.kernels.jit.emit import F32, I8, I64, Emitter, each_item, fetch
from pagemesh.kernels.jit.tile_registers import TILE_BYTES, TILE_ROWS, tile_registers
from pagemesh.kernels.linear.panel_sums import COLUMNS, PanelEpilogue
from pagemesh.kernels.linear.tile_items import BLOCK_ROWS, ITEM_ARGUMENTS, ItemPlaces

_STEP_BYTES: Final = COLUMNS * TILE_BYTES
"""Of a panel per step."""
_FEW_LINES: Final = _STEP_BYTES // TILE_BYTES // 4
"""Of the next panel, fetched in a step where several blocks of rows share the work."""

ARGUMENTS: Final = (
    *ITEM_ARGUMENTS,
    "num_steps",  # of 32 inputs; of whole numbers, of 64
    "part_steps",  # that are multiplied with all rows of a chunk before the next ones
    "num_columns",  # of the output
    "weight",  # bfloat16 [panels, steps, 2, 16, 16, 2], or int8 [panels, steps, 2, 16, 16, 4]
    "bias",  # float32 [panels, 32]
    "scales",  # like the bias, of whole numbers
    "inputs",
    "inputs_stride",  # bytes from row to row
    "output",
    "output_stride",  # elements, as the residual's
    "residual",  # like the output, or null
    "residual_stride",
    "row_scales",  # float32 [rows], of whole numbers
)

# Registers: sums of rows 0-15 and 16-31 by columns 0-15 and 16-31, the rows, the columns.
_SUMS, _LEFT, _RIGHT = ((0, 1), (2, 3)), (4, 5), (6, 7)


class TileVariant(NamedTuple):
    """What a kernel is compiled for."""

    gate: Gate | None
    dtype: str = "bfloat16"
    """Of output and residual; another one only of whole numbers."""
    is_int8: bool = False
    """Whether rows and weight are whole numbers; else they are bfloat16."""


@kernel("tiles")
def compile_tiles(e: Emitter, variant: TileVariant) -> None:
    """The kernel."""
    _TileKernel(e, variant).emit()


class _Block(NamedTuple):
    """What is multiplied at once: up to 32 rows with some steps of a panel."""

    inputs: ir.Value
    sums: ir.Value
    weight: ir.Value
    steps: tuple[ir.Value, ir.Value]
    fetched: ir.Value
    first_line: ir.Value
    """Of the lines of `fetched` that belong to these rows."""
    last_line: ir.Value


class _TileKernel:
    def __init__(self, e: Emitter, variant: TileVariant) -> None:
        self.e, self.b = e, e.builder
        self.tiles = tile_registers(e)
        multiply = self.tiles.multiply_int8 if variant.is_int8 else self.tiles.multiply
        self.multiply_tiles: Callable[[int, int, int], None] = multiply
        element = ELEMENT_TYPES[variant.dtype]
        kinds: Mapping[str, ir.Type] = {
            "weight": I8,
            "bias": F32,
            "scales": F32,
            "row_scales": F32,
            "inputs": I8,
            "output": element,
            "residual": element,
        }
        self.argument = {
            name: e.argument(index, kinds.get(name)) for index, name in enumerate(ARGUMENTS)
        }
        self.items = ItemPlaces(e, self.argument)
        self.configured = e.scratch(1, I64)
        self.epilogue = PanelEpilogue(
            e, variant.gate, variant.dtype, self.argument, is_int8=variant.is_int8
        )

    def emit(self) -> None:
        """Take items until none is left."""
        self.b.store(self.e.int64(0), self.configured)
        each_item(self.e, self.argument["num_items"], self._item)
        self.tiles.release()
        self.b.ret_void()

    def _item(self, number: ir.Value, next_number: ir.Value) -> None:
        e, b = self.e, self.b
        item, next_item = self.items.of(number), self.items.of(next_number)
        (first, last), (begin, end) = item
        with e.loop(first, last) as panel:
            fetched = self.items.following(panel, item, next_item)
            self._multiply_panel(panel, fetched, item.rows, self.items.sums(panel, first))
        with e.loop(begin, end) as row, e.loop(first, last) as panel:
            own = b.mul(b.sub(row, begin), e.int64(COLUMNS))
            self.epilogue.finish(row, panel, e.at(self.items.sums(panel, first), own))

    def _multiply_panel(
        self,
        panel: ir.Value,
        fetched: ir.Value,
        rows: tuple[ir.Value, ir.Value],
        sums: ir.Value,
    ) -> None:
        """Part after part of a panel, each with all rows of a chunk."""
        e, b, argument = self.e, self.b, self.argument
        begin, end = rows
        num_rows = b.sub(end, begin)
        num_blocks = self.items.ceil(num_rows, e.int64(BLOCK_ROWS))
        panel_bytes = b.mul(argument["num_steps"], e.int64(_STEP_BYTES))
        num_parts = self.items.ceil(argument["num_steps"], argument["part_steps"])
        lines = b.mul(argument["num_steps"], e.int64(_FEW_LINES))
        with e.loop(e.int64(0), num_parts) as part:
            first = b.mul(part, argument["part_steps"])
            last = self.items.least(b.add(first, argument["part_steps"]), argument["num_steps"])
            with e.loop(e.int64(0), num_blocks) as number:
                row = b.mul(number, e.int64(BLOCK_ROWS))
                start = b.mul(b.add(begin, row), argument["inputs_stride"])
                block = _Block(
                    inputs=e.at(argument["inputs"], start),
                    sums=e.at(sums, b.mul(row, e.int64(COLUMNS))),
                    weight=e.at(argument["weight"], b.mul(panel, panel_bytes)),
                    steps=(first, last),
                    fetched=e.at(argument["weight"], b.mul(fetched, panel_bytes)),
                    first_line=b.mul(number, lines),
                    last_line=b.sub(b.mul(lines, e.int64(4)), e.int64(_FEW_LINES)),
                )
                block_rows = self.items.least(b.sub(num_rows, row), e.int64(BLOCK_ROWS))
                is_only = b.icmp_signed("==", num_blocks, e.int64(1))
                self._multiply_any(block, block_rows, is_only)

    def _multiply_any(self, block: _Block, num_rows: ir.Value, is_only: ir.Value) -> None:
        """`_multiply` for a number of rows that is known only now."""
        e, b = self.e, self.b
        self._configure(num_rows)
        all_lines = 4 * _FEW_LINES
        with b.if_else(b.icmp_signed(">", num_rows, e.int64(TILE_ROWS))) as (many, few):
            for branch, num_tiles in ((many, 2), (few, 1)):
                with branch, b.if_else(is_only) as (alone, shared):
                    with alone:
                        self._multiply(block, num_tiles, all_lines)
                    with shared:
                        self._multiply(block, num_tiles, _FEW_LINES)

    def _configure(self, num_rows: ir.Value) -> None:
        """Unless it is as it must be already: it takes as long as ten products."""
        e, b = self.e, self.b
        with b.if_then(b.icmp_signed("!=", b.load(self.configured), num_rows)):
            b.store(num_rows, self.configured)
            full = e.int64(TILE_ROWS)
            upper = self.items.least(num_rows, full)
            rest = b.sub(num_rows, upper)
            is_none = b.icmp_signed("==", rest, e.int64(0))
            lower = b.select(is_none, e.int64(1), rest)
            self.tiles.configure([upper, upper, lower, lower, upper, lower, full, full])

    def _multiply(self, block: _Block, num_tiles: int, num_lines: int) -> None:
        """Add a part of a panel to the sums of one or two tiles of rows."""
        e, b = self.e, self.b
        stride = e.int64(COLUMNS * 4)
        sums = [
            (_SUMS[m][n], e.at(block.sums, e.int64(m * TILE_ROWS * COLUMNS + n * TILE_ROWS)))
            for m in range(num_tiles)
            for n in range(2)
        ]
        first, last = block.steps
        with b.if_else(b.icmp_signed("==", first, e.int64(0))) as (begins, goes_on):
            with begins:
                for tile, _ in sums:
                    self.tiles.zero(tile)
            with goes_on:
                for tile, address in sums:
                    self.tiles.load(tile, address, stride)
        with e.loop(first, last) as step:
            self._fetch(block, step, num_lines)
            self._multiply_step(block, step, num_tiles)
        for tile, address in sums:
            self.tiles.store(tile, address, stride)

    def _multiply_step(self, block: _Block, step: ir.Value, num_tiles: int) -> None:
        e, b = self.e, self.b
        left = e.at(block.inputs, b.mul(step, e.int64(TILE_BYTES)))
        right = e.at(block.weight, b.mul(step, e.int64(_STEP_BYTES)))
        stride = self.argument["inputs_stride"]
        for m in range(num_tiles):
            self.tiles.load(_LEFT[m], e.at(left, b.mul(stride, e.int64(m * TILE_ROWS))), stride)
        for n in range(2):
            half = e.int64(n * TILE_ROWS * TILE_BYTES)
            self.tiles.load(_RIGHT[n], e.at(right, half), e.int64(TILE_BYTES))
            for m in range(num_tiles):
                self.multiply_tiles(_SUMS[m][n], _LEFT[m], _RIGHT[n])

    def _fetch(self, block: _Block, step: ir.Value, num_lines: int) -> None:
        """A step's share of the next panel, into the second-level cache."""
        e, b = self.e, self.b
        first = b.mul(step, e.int64(num_lines))
        if num_lines == _FEW_LINES:
            first = self.items.least(b.add(block.first_line, first), block.last_line)
        begin = e.at(block.fetched, b.mul(first, e.int64(TILE_BYTES)))
        for line in range(num_lines):
            fetch(e, e.at(begin, e.int64(line * TILE_BYTES)))
