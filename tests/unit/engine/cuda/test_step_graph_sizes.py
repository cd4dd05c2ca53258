from __future__ import annotations

import pytest

from pagemesh.engine.cuda.step_graphs import chunk_sizes, decode_sizes, padded_size


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


@pytest.mark.parametrize(
    ("max_num_batched_tokens", "sizes"),
    [
        (1, []),
        (2, [2]),
        (16, [16]),
        (100, [16, 32, 64, 96, 100]),
        (1024, [16, 32, 64, 96, 128, 192, 256, 384, 512, 768, 1024]),
        (8192, [16, 32, 64, 96, 128, 192, 256, 384, 512, 768, 1024]),
    ],
)
def test_steps_with_chunks_are_captured_up_to_a_thousand_tokens(
    max_num_batched_tokens: int, sizes: list[int]
) -> None:
    assert chunk_sizes(max_num_batched_tokens) == sizes


def test_decodes_are_padded_to_the_next_size() -> None:
    sizes = [1, 2, 4, 8]
    assert [padded_size(sizes, count) for count in (1, 2, 3, 4, 5, 8)] == [1, 2, 4, 4, 8, 8]
    assert padded_size(sizes, 9) is None
    assert padded_size([], 1) is None
