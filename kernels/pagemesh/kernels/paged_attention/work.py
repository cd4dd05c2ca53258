"""How a step's attention is shared among the programs of a kernel. On the host, in numpy; no torch.

Rows (queries times the heads of a group) are cut into tiles, and each tile's keys into tiles of keys.
All of that lies on one line, which is cut into shares of equal length at borders of segments, as in
stream-K (Osama et al. 2023, https://arxiv.org/abs/2301.03598): a long context is shared by many
programs, and a program may compute many short ones. Where that gains nothing, row tiles stay whole. A
row's result does not depend on where the cuts are, see docs/decisions.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]

ITEM = (
    "first_token",  # the sequence's first query, in the batch
    "first_row",  # of the tile, in the sequence: query · group + head of the group
    "num_rows",
    "first_position",  # of the sequence's first query
    "context",
    "kv_head",
    "first_table",
    "begin_tile",  # of keys
    "end_tile",
    # Where the first segment's sums go; -1 in an item that begins a tile, which merges what it computes.
    "partial_row",
    "merge",  # -1 when the item is a whole tile
)
MERGE = (
    "partial_row",  # of the sums of the item that begins the tile; behind them those of later segments
    "num_sums",
    "num_items",
)

# In tiles of keys: what a tile of rows costs besides its keys, as it reads its queries and waits for its
# first keys; that wait alone, with each segment whose sums are left in memory; and that row tiles are cut,
# whose sums are counted, read and merged.
_START_COST = 2
_RESTART_COST = 1
_MERGE_COST = 2
# A cut so much nearer to a border of row tiles than a program's share is long is made there.
_NEAR = 16


class Sequences(NamedTuple):
    """A batch as columns, all int64 [sequences]."""

    num_queries: Ints
    contexts: Ints
    first_tokens: Ints
    first_tables: Ints


class Tiles(NamedTuple):
    """Sizes of a kernel's tiles, and what rows see."""

    num_rows: int
    num_keys: int
    segment_tiles: int  # tiles of keys in a segment
    group: int  # heads that share a kv head
    num_kv_heads: int
    causal: bool


class Room(NamedTuple):
    """What there is for row tiles that are cut."""

    num_rows: int  # for sums
    num_merges: int  # that can be counted
    first_row: int = 0  # of the rows for sums


class Work(NamedTuple):
    """What the programs of one launch do; all int32."""

    programs: npt.NDArray[np.int32]  # [programs + 1]: where each program's items begin
    items: npt.NDArray[np.int32]  # [items, ITEM]
    merges: npt.NDArray[np.int32]  # [merges, MERGE]
    num_partial_rows: int


def share_work(
    tiles: Tiles,
    sequences: Sequences,
    window: int | None,
    num_programs: int,
    room: Room,
) -> Work:
    """Share a batch among programs so that each computes about as many keys.

    Row tiles for whose sums there is no room are not cut.
    """
    columns = _row_tiles(tiles, sequences, window)
    begins, ends = columns[7], columns[8]
    cuts = _cuts(begins, ends, num_programs, tiles.segment_tiles)
    merges = _Merges(columns, cuts, tiles.segment_tiles, room)

    places = _places(np.arange(len(begins)), begins)
    ordered_cuts = _places(cuts.tiles, cuts.keys)
    starts = _distinct(np.sort(np.append(places, ordered_cuts), kind="stable"))
    starts = starts[starts < _places(len(begins), 0)]
    owners, starts_at = starts >> 32, starts & 0xFFFFFFFF
    items = columns[:, owners]
    items[7] = starts_at
    is_last = np.append(owners[1:] != owners[:-1], True)
    items[8] = np.where(is_last, items[8], np.append(starts_at[1:], 0))
    table = merges.fill(items, owners, starts_at > begins[owners])
    programs = np.searchsorted(starts, ordered_cuts)
    return Work(
        programs.astype(np.int32),
        np.ascontiguousarray(items.T, np.int32),
        table,
        merges.num_partial_rows,
    )


class _Cuts(NamedTuple):
    """Where each program's share begins, and the end."""

    tiles: Ints  # of rows
    keys: Ints  # tiles of keys, 0 behind the last row tile


class _Merges:
    """Row tiles that several programs share."""

    def __init__(self, columns: Ints, cuts: _Cuts, segment_tiles: int, room: Room) -> None:
        """Undoes cuts for whose sums there is no room."""
        tiles, keys = cuts
        begins = np.append(columns[7], 0)
        is_inner = keys > begins[tiles]
        is_first = is_inner.copy()
        is_first[1:] &= (tiles[1:] != tiles[:-1]) | ~is_inner[:-1]
        self._tiles = tiles[is_first]
        self._numbers = keys[is_first] // segment_tiles
        last_numbers = (columns[8, self._tiles] - 1) // segment_tiles
        self._num_sums = 2 + last_numbers - self._numbers
        needed = self._num_sums * columns[2, self._tiles]
        has_room = np.cumsum(needed) <= room.num_rows
        has_room[room.num_merges :] = False
        if not has_room.all():
            without_room = np.isin(tiles, self._tiles[~has_room])
            keys[without_room] = begins[tiles[without_room]]
            self._tiles, self._numbers = self._tiles[has_room], self._numbers[has_room]
            self._num_sums, needed = self._num_sums[has_room], needed[has_room]
        ends = np.cumsum(needed)
        self.num_partial_rows = int(ends[-1]) if len(ends) else 0
        self._bases = room.first_row + ends - needed
        self._segment_tiles = segment_tiles
        self._num_tiles = len(columns[7])

    def fill(
        self, items: Ints, owners: Ints, is_later: npt.NDArray[np.bool_]
    ) -> npt.NDArray[np.int32]:
        """Say in items where their sums go; gives the merges.

        `owners` are their row tiles, and `is_later` whether they go on in one.
        """
        if not len(self._tiles):
            return np.empty((0, len(MERGE)), np.int32)
        number_of_tile = np.full(self._num_tiles, -1)
        number_of_tile[self._tiles] = np.arange(len(self._tiles))
        items[10] = number_of_tile[owners]
        later = items[:, is_later]
        numbers = later[10]
        sums_before = 1 + later[7] // self._segment_tiles - self._numbers[numbers]
        items[9, is_later] = self._bases[numbers] + sums_before * later[2]
        num_items = np.bincount(owners, minlength=self._num_tiles)[self._tiles]
        return np.stack([self._bases, self._num_sums, num_items], axis=1).astype(np.int32)


def _row_tiles(tiles: Tiles, sequences: Sequences, window: int | None) -> Ints:
    """Whole row tiles with all the keys that they see, as columns of ITEM."""
    num_rows = sequences.num_queries * tiles.group
    num_pieces = -(-num_rows // tiles.num_rows)
    numbers = np.repeat(np.arange(len(num_rows)), num_pieces * tiles.num_kv_heads)
    first = np.cumsum(num_pieces * tiles.num_kv_heads) - num_pieces * tiles.num_kv_heads
    within = np.arange(len(numbers)) - first[numbers]
    # Tiles of one head, whose keys are the same, lie side by side.
    heads, pieces = np.divmod(within, num_pieces[numbers])
    first_rows = pieces * tiles.num_rows
    tile_rows = np.minimum(tiles.num_rows, num_rows[numbers] - first_rows)
    contexts = sequences.contexts[numbers]
    first_positions = contexts - sequences.num_queries[numbers]
    nearest = first_positions + first_rows // tiles.group
    farthest = first_positions + (first_rows + tile_rows - 1) // tiles.group
    begins = np.zeros_like(nearest) if window is None else np.maximum(nearest - window + 1, 0)
    ends = contexts
    if tiles.causal:
        ends = farthest + 1
    elif window is not None:
        ends = np.minimum(contexts, farthest + window)
    begin_tiles = begins // tiles.num_keys
    return np.stack(
        [
            sequences.first_tokens[numbers],
            first_rows,
            tile_rows,
            first_positions,
            contexts,
            heads,
            sequences.first_tables[numbers],
            begin_tiles,
            # Rows that see nothing have a tile too, of which they read nothing.
            np.maximum(-(-ends // tiles.num_keys), begin_tiles + 1),
            np.full_like(heads, -1),
            np.full_like(heads, -1),
        ]
    )


def _cuts(begins: Ints, ends: Ints, num_programs: int, segment_tiles: int) -> _Cuts:
    """Cut row tiles, or only between them where that is over as soon."""
    line = _Line(begins, ends, num_programs, segment_tiles)
    length = int(line.ends[-1])
    ideal = np.arange(num_programs + 1) * length // num_programs
    tiles = np.minimum(np.searchsorted(line.ends, ideal, side="right") - 1, len(begins) - 1)
    offsets, left = ideal - line.ends[tiles], line.ends[tiles + 1] - ideal
    is_second_half = offsets >= left
    begins = np.append(begins, 0)
    whole_tiles = tiles + is_second_half
    longest = int(np.diff(line.ends[whole_tiles]).max())
    if longest > length // num_programs + _MERGE_COST:
        keys = line.nearest_borders(tiles, offsets)
        is_near = _NEAR * np.minimum(offsets, left) * num_programs <= length
        is_behind = np.where(is_near, is_second_half, keys >= ends[tiles])
        is_begin = is_behind | is_near | (keys <= begins[tiles])
        starts = np.where(is_begin, 0, _START_COST)
        costs = np.where(is_begin, 0, line.costs_up_to(tiles, keys))
        tiles = tiles + is_behind
        loads = np.diff(line.ends[tiles] + starts + costs) + starts[:-1]
        if int(loads.max()) + _MERGE_COST < longest:
            return _Cuts(tiles, np.where(is_begin, begins[tiles], keys))
    return _Cuts(whole_tiles, begins[whole_tiles])


class _Line:
    """Row tiles behind each other, as long as they cost.

    The first program of a row tile keeps what it sums up; whoever goes on starts anew with each segment.
    """

    def __init__(self, begins: Ints, ends: Ints, num_programs: int, segment_tiles: int) -> None:
        self._segment_tiles = segment_tiles
        self._begins = begins
        lengths = ends - begins
        share = (int(lengths.sum()) + _START_COST * len(begins)) // num_programs
        self._firsts = np.minimum(ends, begins + share)
        """About where the first program of each row tile ends."""
        costs = lengths + _START_COST
        if share < int(lengths.max()):
            later = self._weights(ends) - self._weights(self._firsts)
            costs = _START_COST + self._firsts - begins + later
        self.ends = np.append(0, np.cumsum(costs))
        """Where row tiles end on the line, and 0."""

    def _weights(self, keys: Ints) -> Ints:
        """What all tiles of keys before these would cost if every segment were started anew."""
        return keys + _RESTART_COST * (keys // self._segment_tiles)

    def costs_up_to(self, tiles: Ints, keys: Ints) -> Ints:
        """Of row tiles from their begin to tiles of keys, without `_START_COST`."""
        firsts = self._firsts[tiles]
        later = self._weights(np.maximum(keys, firsts)) - self._weights(firsts)
        return np.minimum(keys, firsts) - self._begins[tiles] + later

    def nearest_borders(self, tiles: Ints, offsets: Ints) -> Ints:
        """The border of segments next to places on the line, which are in these row tiles."""
        keys = self._begins[tiles] + np.maximum(offsets - _START_COST, 0)
        firsts = self._firsts[tiles]
        wanted = self._weights(np.minimum(keys, firsts)) + np.maximum(keys - firsts, 0)
        between = self._segment_tiles + _RESTART_COST
        numbers: Ints = (2 * wanted + between) // (2 * between)
        return numbers * self._segment_tiles


def _places(tiles: Ints | int, keys: Ints | int) -> Ints:
    """Points of the line in their order."""
    return np.asarray(tiles, np.int64) << 32 | np.asarray(keys, np.int64)


def _distinct(ascending: Ints) -> Ints:
    """Each value once, none below 0; `np.unique` would hash them, for a tenth of a millisecond."""
    return ascending[np.diff(ascending, prepend=-1) > 0]
