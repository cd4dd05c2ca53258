"""However a batch is shared among programs, each row tile is computed once, from its first key to its last."""

from __future__ import annotations

from collections import defaultdict
from itertools import pairwise

import numpy as np
import pytest

from pagemesh.kernels.paged_attention.work import Room, Sequences, Tiles, Work, share_work

Lengths = list[tuple[int, int]]

PLENTY = Room(10**9, 10**9)


def make_sequences(lengths: Lengths) -> Sequences:
    num_queries, contexts = np.array(lengths, np.int64).T
    num_blocks = -(-contexts // 16)
    first_tokens, first_tables = (np.cumsum(x) - x for x in (num_queries, num_blocks))
    return Sequences(num_queries, contexts, first_tokens, first_tables)


def assert_covers(work: Work, whole: Work, segment_tiles: int) -> None:
    """`whole` is the same batch for a single program, whose items are all row tiles."""
    parts = defaultdict(list)
    for first_token, first_row, *item in work.items.tolist():
        parts[first_token, first_row, item[3]].append(item)
    merges = work.merges.tolist()
    used: list[int] = []
    for first_token, first_row, *item in whole.items.tolist():
        own = parts.pop((first_token, first_row, item[3]))
        assert own[0][5] == item[5]
        assert own[-1][6] == item[6]
        assert [part[:5] for part in own] == [item[:5]] * len(own)
        for before, after in pairwise(own):
            assert before[6] == after[5]
            assert after[5] % segment_tiles == 0
        number = own[0][8]
        assert [part[8] for part in own] == [number] * len(own)
        assert own[0][7] == -1
        if len(own) == 1:
            assert number == -1
            continue
        base, num_sums, num_items = merges[number]
        merges[number] = None
        assert num_items == len(own)
        num_rows, row = item[0], base + item[0]
        for part in own[1:]:
            assert part[7] == row
            row += len(range(part[5], part[6], segment_tiles)) * num_rows
        assert row == base + num_sums * num_rows
        used += range(base, row)
    assert not parts
    assert merges == [None] * len(merges)
    assert len(used) == len(set(used)) == work.num_partial_rows


def loads(work: Work) -> list[int]:
    """Key tiles of each program."""
    lengths = work.items[:, 8] - work.items[:, 7]
    ends = np.cumsum(np.append(0, lengths))[work.programs]
    return [int(load) for load in np.diff(ends)]


def test_any_batch_is_computed_once() -> None:
    generator = np.random.default_rng(1)
    for _ in range(40):
        draw = generator.choice
        tiles = Tiles(
            num_rows=int(draw([8, 64, 128])),
            num_keys=int(draw([16, 64])),
            segment_tiles=int(draw([1, 2, 8])),
            group=int(draw([1, 4, 5, 71])),
            num_kv_heads=int(draw([1, 2, 8])),
            causal=bool(draw([True, False])),
        )
        contexts = generator.integers(1, 2000, generator.integers(1, 8)).tolist()
        lengths = [(int(draw([1, generator.integers(1, c + 1)])), c) for c in contexts]
        window = [None, 1, 100, 2999][generator.integers(4)]
        room = Room(int(draw([0, 500, 10**9])), int(draw([0, 3, 10**9])), int(draw([0, 7])))
        sequences = make_sequences(lengths)
        work = share_work(tiles, sequences, window, int(generator.integers(1, 300)), room)
        whole = share_work(tiles, sequences, window, 1, PLENTY)
        assert_covers(work, whole, tiles.segment_tiles)
        assert work.num_partial_rows <= room.num_rows
        assert len(work.merges) <= room.num_merges
        assert not len(work.merges) or work.merges[0, 0] == room.first_row


DECODES = Tiles(64, 64, 8, 4, 8, True)


@pytest.mark.parametrize(
    ("lengths", "most"),
    [
        # 2 or 16 segments of 8 tiles for each head; there are more programs.
        ([(1, 1024)], 8),
        ([(1, 8192)], 8),
        # 16,384 key tiles over 264 programs: 62 each, cut to segments.
        ([(1, 131072)], 64),
        # 40 · 8 · 64 over 264: 77.6 each.
        ([(1, 4096)] * 40, 84),
        # Too short to be cut: 2,048 row tiles of 8 over 264 programs, 7 or 8 row tiles each.
        ([(1, 500)] * 256, 64),
    ],
    ids=["1024", "8192", "long", "many", "short ones"],
)
def test_programs_have_about_as_much_to_do(lengths: Lengths, most: int) -> None:
    work = share_work(DECODES, make_sequences(lengths), None, 264, PLENTY)
    assert max(loads(work)) <= most


@pytest.mark.parametrize("num_rows", [32, 64, 256])
def test_what_would_hardly_be_over_sooner_is_not_cut(num_rows: int) -> None:
    # One, two or eight row tiles for nearly each of 264 programs.
    work = share_work(DECODES, make_sequences([(1, 1024)] * num_rows), None, 264, PLENTY)
    assert not len(work.merges)
    assert len(work.items) == 8 * num_rows


def test_a_window_leaves_out_what_nobody_sees() -> None:
    tiles = Tiles(64, 64, 8, 4, 1, True)
    work = share_work(tiles, make_sequences([(1, 1000)]), 128, 1, PLENTY)
    # Position 999 sees 872 to 999: tiles 13 to 15.
    assert work.items[:, 7:9].tolist() == [[13, 16]]


@pytest.mark.parametrize(
    ("room", "used"),
    [
        (Room(31, 9), 0),
        (Room(32, 9), 32),
        (Room(64, 9), 64),
        (Room(64, 1), 32),
        (Room(64, 0), 0),
    ],
)
def test_rows_for_which_there_is_no_room_are_not_cut(room: Room, used: int) -> None:
    tiles = Tiles(64, 64, 8, 4, 1, True)
    sequences = make_sequences([(1, 4096), (1, 4096)])
    # Each has 8 segments of 4 rows.
    assert share_work(tiles, sequences, None, 16, room).num_partial_rows == used
