from __future__ import annotations

import pytest

from pagemesh.engine.cuda.decode_sizes import decode_sizes, padded_size


@pytest.mark.parametrize(
    ("max_num_seqs", "sizes"),
    [
        (1, [1]),
        (3, [1, 2, 3]),
        (8, [1, 2, 4, 8]),
        (30, [1, 2, 4, 8, 16, 24, 30]),
        (256, [1, 2, 4, *range(8, 257, 8)]),
        (300, [1, 2, 4, *range(8, 257, 8), 272, 288, 300]),
    ],
)
def test_the_last_size_fits_every_decode(max_num_seqs: int, sizes: list[int]) -> None:
    assert decode_sizes(max_num_seqs) == sizes


def test_decodes_are_padded_to_the_next_size() -> None:
    sizes = [1, 2, 4, 8]
    assert [padded_size(sizes, count) for count in (1, 2, 3, 4, 5, 8)] == [1, 2, 4, 4, 8, 8]
    assert padded_size(sizes, 9) is None
    assert padded_size([], 1) is None
