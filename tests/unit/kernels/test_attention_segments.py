"""Segments are short where a sequence begins, and each number of one is a run of places."""

from __future__ import annotations

import numpy as np

from pagemesh.kernels.paged_attention.segments import Segments

PLACES = np.arange(48)


def test_segments_are_numbered_in_their_order() -> None:
    lengths = [2] * 4 + [4] * 2 + [8] * 4
    expected = np.repeat(np.arange(10), lengths)
    assert Segments(2, 8, 16).numbers_of(PLACES).tolist() == expected.tolist()


def test_segments_may_have_one_length_or_two() -> None:
    assert Segments(4).numbers_of(PLACES).tolist() == (PLACES // 4).tolist()
    expected = np.repeat(np.arange(9), [2] * 4 + [8] * 5)
    assert Segments(2, 8, 8).numbers_of(PLACES).tolist() == expected.tolist()


def test_segments_of_keys_are_counted_in_tiles() -> None:
    assert Segments(128, 1024, 8192).in_tiles(64) == Segments(2, 16, 128)
    keys = np.arange(20_000)
    in_tiles = Segments(128, 1024, 8192).in_tiles(64).numbers_of(keys // 64)
    assert in_tiles.tolist() == Segments(128, 1024, 8192).numbers_of(keys).tolist()
