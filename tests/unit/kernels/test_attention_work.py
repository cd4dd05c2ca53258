"""However a batch is shared among programs, each row tile is computed once, from its first key to its last."""

from __future__ import annotations

from collections import defaultdict
from itertools import pairwise

import numpy as np
import pytest

from pagemesh.kernels.paged_attention.work import Sequences, Tiles, Work, share_work

Lengths = list[tuple[int, int]]


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
    merges = {(m[0], m[1], m[3]): m for m in work.merges.tolist()}
    used: list[int] = []
    for first_token, first_row, *item in whole.items.tolist():
        key = first_token, first_row, item[3]
        own = parts.pop(key)
        assert own[0][5] == item[5]
        assert own[-1][6] == item[6]
        assert [part[:5] for part in own] == [item[:5]] * len(own)
        for before, after in pairwise(own):
            assert before[6] == after[5]
            assert after[5] % segment_tiles == 0
        if len(own) == 1:
            assert own[0][7] == -1
            assert key not in merges
            continue
        _, _, num_rows, _, base, num_segments = merges.pop(key)
        first_segment = item[5] // segment_tiles
        assert num_segments == -(-item[6] // segment_tiles) - first_segment
        for part in own:
            assert part[7] == base + (part[5] // segment_tiles - first_segment) * num_rows
        used += range(base, base + num_segments * num_rows)
    assert not parts
    assert not merges
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
        max_rows = int(draw([0, 500, 10**9]))
        sequences = make_sequences(lengths)
        work = share_work(tiles, sequences, window, int(generator.integers(1, 300)), max_rows)
        whole = share_work(tiles, sequences, window, 1, 0)
        assert_covers(work, whole, tiles.segment_tiles)
        assert work.num_partial_rows <= max_rows


DECODES = Tiles(64, 64, 8, 4, 8, True)


@pytest.mark.parametrize(
    ("lengths", "most"),
    [
        # 16 segments of 8 tiles; there are more programs than segments.
        ([(1, 1024)], 8),
        # 16,384 key tiles over 264 programs: 62 each, cut to segments.
        ([(1, 131072)], 64),
        # 40 · 8 · 64 over 264: 77.6 each.
        ([(1, 4096)] * 40, 84),
        # Too short to be cut: 2,048 row tiles of 8 over 264 programs, 7 or 8 row tiles each.
        ([(1, 500)] * 256, 64),
    ],
    ids=["short", "long", "many", "short ones"],
)
def test_programs_have_about_as_much_to_do(lengths: Lengths, most: int) -> None:
    work = share_work(DECODES, make_sequences(lengths), None, 264, 10**9)
    assert max(loads(work)) <= most


def test_a_window_leaves_out_what_nobody_sees() -> None:
    tiles = Tiles(64, 64, 8, 4, 1, True)
    work = share_work(tiles, make_sequences([(1, 1000)]), 128, 1, 0)
    # Position 999 sees 872 to 999: tiles 13 to 15.
    assert work.items[:, 7:9].tolist() == [[13, 16]]


def test_rows_for_which_there_is_no_room_are_not_cut() -> None:
    tiles = Tiles(64, 64, 8, 4, 1, True)
    sequences = make_sequences([(1, 4096), (1, 4096)])
    # Each has 8 segments of 4 rows.
    assert [share_work(tiles, sequences, None, 16, n).num_partial_rows for n in (31, 32, 64)] == [
        0,
        32,
        64,
    ]
