"""How rows and panels are cut into items that threads take, where tiles multiply: it says nothing of the bits."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

from llvmlite import ir

from pagemesh.kernels.jit.emit import Emitter
from pagemesh.kernels.jit.tile_registers import TILE_ROWS
from pagemesh.kernels.linear.panel_sums import COLUMNS

BLOCK_ROWS: Final = 2 * TILE_ROWS
"""That are multiplied at once."""

MAX_CHUNK_ROWS: Final = 1024
"""Of an item, by its panels."""

MAX_ITEM_PANELS: Final = 4
_FEW_ROWS: Final = 64
"""Panels of an item of more rows than a few: the rows of a wide output lie pages apart, so that whatever is
written to one of them at once must be long."""

_CHUNK_BYTES: Final = 1 << 20
"""Of the rows of an item: half of the second-level cache."""

_MIN_ITEMS: Final = 4
"""For each thread, so that threads end together."""

MIN_SHARED_PRODUCTS: Final = 1 << 18
"""Multiplications from which on threads share them."""

ITEM_ARGUMENTS: Final[Mapping[str, ir.Type | None]] = {
    "counter": None,  # the next item to be taken, 0 at first
    "num_items": None,
    "num_panels": None,
    "item_panels": None,
    "run_groups": None,  # of panels: item = (run · num_chunks + chunk) · run_groups + group of the run
    "num_chunks": None,
    "chunk_rows": None,  # a multiple of 32; by item_panels, at most 1,024
    "num_rows": None,
}


class TileItems:
    """Of a product."""

    def __init__(self, num_rows: int, row_bytes: int, num_panels: int, num_threads: int) -> None:
        fitting = max(_CHUNK_BYTES // row_bytes // BLOCK_ROWS, 1) * BLOCK_ROWS
        whole = -(-num_rows // BLOCK_ROWS) * BLOCK_ROWS
        self._num_rows, self._num_panels = num_rows, num_panels
        self._chunk_rows = min(fitting, MAX_CHUNK_ROWS, whole)
        self._panels = 1
        fits = num_rows * row_bytes <= _CHUNK_BYTES
        if num_rows > _FEW_ROWS:
            # Rows that all stay in the cache pass in small chunks, whose sums stay in the first one.
            self._chunk_rows = (
                _FEW_ROWS if fits else min(self._chunk_rows, MAX_CHUNK_ROWS // MAX_ITEM_PANELS)
            )
            self._panels = min(MAX_ITEM_PANELS, num_panels)
        self._num_chunks = -(-num_rows // self._chunk_rows)
        while self._panels > 1 and self._count() < _MIN_ITEMS * num_threads:
            self._panels //= 2
        self._run_groups = 1 if fits else self._count() // self._num_chunks

    def arguments(self) -> tuple[int, ...]:
        """By ITEM_ARGUMENTS."""
        return (
            0,
            self._count(),
            self._num_panels,
            self._panels,
            self._run_groups,
            self._num_chunks,
            self._chunk_rows,
            self._num_rows,
        )

    def _count(self) -> int:
        return -(-self._num_panels // self._panels) * self._num_chunks


class TileItem(NamedTuple):
    """From the first to behind the last."""

    panels: tuple[ir.Value, ir.Value]
    rows: tuple[ir.Value, ir.Value]


class ItemPlaces:
    """Emits where items are."""

    def __init__(self, e: Emitter, argument: Mapping[str, ir.Value]) -> None:
        self._e, self._b = e, e.builder
        self._argument = argument
        self._memory = e.scratch(MAX_CHUNK_ROWS * COLUMNS)

    def of(self, item: ir.Value) -> TileItem:
        """Of an item by its number."""
        b, argument = self._b, self._argument
        size, num_chunks = argument["run_groups"], argument["num_chunks"]
        run = b.sdiv(item, b.mul(size, num_chunks))
        group = b.add(b.mul(run, size), b.srem(item, size))
        first = b.mul(group, argument["item_panels"])
        last = self.least(b.add(first, argument["item_panels"]), argument["num_panels"])
        begin = b.mul(b.srem(b.sdiv(item, size), num_chunks), argument["chunk_rows"])
        end = self.least(b.add(begin, argument["chunk_rows"]), argument["num_rows"])
        return TileItem((first, last), (begin, end))

    def sums(self, panel: ir.Value, first: ir.Value) -> ir.Value:
        """Where those are kept of all rows of a chunk with one of an item's panels: float32, 32 for each row."""
        size = self._b.mul(self._argument["chunk_rows"], self._e.int64(COLUMNS))
        return self._e.at(self._memory, self._b.mul(self._b.sub(panel, first), size))

    def following(self, panel: ir.Value, item: TileItem, next_item: TileItem) -> ir.Value:
        """The panel that is multiplied next."""
        b = self._b
        next_own = b.add(panel, self._e.int64(1))
        is_own = b.icmp_signed("<", next_own, item.panels[1])
        return b.select(is_own, next_own, next_item.panels[0])

    def least(self, x: ir.Value, y: ir.Value) -> ir.Value:
        """The smaller one."""
        return self._b.select(self._b.icmp_signed("<", x, y), x, y)

    def ceil(self, total: ir.Value, size: ir.Value) -> ir.Value:
        """How many of a size make up the total."""
        return self._b.sdiv(self._b.add(total, self._b.sub(size, self._e.int64(1))), size)
