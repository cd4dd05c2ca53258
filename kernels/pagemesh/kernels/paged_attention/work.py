"""How a step's attention is shared among the programs of a kernel. On the host, in numpy; no torch.

Rows (queries times the heads of a group) are cut into tiles, and each tile's keys into tiles of keys.
All of that lies on one line, which is cut into shares of equal length at borders of segments, as in
stream-K (Osama et al. 2023, https://arxiv.org/abs/2301.03598): a long context is shared by many
programs, and a program may compute many short ones. A row's result does not depend on where the cuts
are, see docs/decisions.
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
    "partial_row",  # where the first segment's sums go, -1 when the item is a whole tile
)
MERGE = ("first_token", "first_row", "num_rows", "kv_head", "partial_row", "num_segments")

# What a tile of rows costs besides its keys, in tiles of keys: it reads its queries and waits for its
# first keys.
_START_COST = 2
# Tiles of rows so much shorter than a program's share are not cut.
_MIN_CUT = 8


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
    max_partial_rows: int,
    first_partial_row: int = 0,
) -> Work:
    """Share a batch among programs so that each computes about as many keys.

    Row tiles that are cut use rows from `first_partial_row` on for their segments' sums; those for which
    there is no room are not cut.
    """
    columns = _row_tiles(tiles, sequences, window)
    begins, ends = columns[7], columns[8]
    num_segments = -(-ends // tiles.segment_tiles) - begins // tiles.segment_tiles
    needed = num_segments * columns[2]
    cut_tiles, cut_keys = _cuts(begins, ends, num_programs, tiles.segment_tiles)

    is_inner = (cut_tiles < len(begins)) & (cut_keys > np.append(begins, 0)[cut_tiles])
    inner = _distinct(cut_tiles[is_inner])
    has_room = np.cumsum(needed[inner]) <= max_partial_rows
    without_room = np.isin(cut_tiles, inner[~has_room])
    cut_keys[without_room] = begins[cut_tiles[without_room]]
    inner = inner[has_room]

    bases = np.full(len(begins), -1)
    bases[inner] = first_partial_row + np.cumsum(needed[inner]) - needed[inner]
    places = _places(np.arange(len(begins)), begins)
    cuts = _places(cut_tiles, cut_keys)
    starts = _distinct(np.sort(np.append(places, cuts), kind="stable"))
    starts = starts[starts < _places(len(begins), 0)]
    owners, starts_at = starts >> 32, starts & 0xFFFFFFFF
    items = columns[:, owners]
    items[7] = starts_at
    is_last = np.append(owners[1:] != owners[:-1], True)
    items[8] = np.where(is_last, items[8], np.append(starts_at[1:], 0))
    segments_before = starts_at // tiles.segment_tiles - begins[owners] // tiles.segment_tiles
    owner_bases = bases[owners]
    items[9] = np.where(owner_bases < 0, -1, owner_bases + segments_before * items[2])
    merges = columns[[0, 1, 2, 5, 9, 9]][:, inner]
    merges[4], merges[5] = bases[inner], num_segments[inner]
    programs = np.searchsorted(starts, cuts)
    return Work(
        programs.astype(np.int32),
        np.ascontiguousarray(items.T, np.int32),
        np.ascontiguousarray(merges.T, np.int32),
        int(needed[inner].sum()),
    )


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
        ]
    )


def _cuts(begins: Ints, ends: Ints, num_programs: int, segment_tiles: int) -> tuple[Ints, Ints]:
    """Where each program's share begins, and the end: the row tile, and the key tile in it."""
    costs = ends - begins + _START_COST
    starts = np.cumsum(costs) - costs
    line = int(costs.sum())
    ideal = np.arange(num_programs + 1) * line // num_programs
    tiles = np.searchsorted(starts, ideal, side="right") - 1
    offsets = ideal - starts[tiles]
    keys = begins[tiles] + offsets - _START_COST
    keys = (keys + segment_tiles // 2) // segment_tiles * segment_tiles
    is_short = costs[tiles] * _MIN_CUT <= line // num_programs
    keys = np.where(is_short & (2 * offsets < costs[tiles]), begins[tiles], keys)
    keys = np.where(is_short & (2 * offsets >= costs[tiles]), ends[tiles], keys)
    is_behind = keys >= ends[tiles]
    tiles = tiles + is_behind
    next_begins = begins[np.minimum(tiles, len(begins) - 1)]
    keys = np.where(is_behind, next_begins, np.maximum(keys, next_begins))
    tiles[0], keys[0], tiles[-1] = 0, begins[0], len(begins)
    return tiles, np.where(tiles == len(begins), 0, keys)


def _places(tiles: Ints | int, keys: Ints | int) -> Ints:
    """Points of the line in their order."""
    return np.asarray(tiles, np.int64) << 32 | np.asarray(keys, np.int64)


def _distinct(ascending: Ints) -> Ints:
    """Each value once, none below 0; `np.unique` would hash them, for a tenth of a millisecond."""
    return ascending[np.diff(ascending, prepend=-1) > 0]
