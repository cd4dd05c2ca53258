"""How many sequences the captured decodes are for."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence


def decode_sizes(max_num_seqs: int) -> list[int]:
    """Sizes to capture, ascending: close where a padded row costs much, the last one fits every decode.

    1, 2, 4, then multiples of 8 up to 256 and of 16 beyond, as in vLLM (`cudagraph_capture_sizes`).
    """
    sizes = [1, 2, 4, *range(8, 256, 8), *range(256, max_num_seqs, 16)]
    return [size for size in sizes if size < max_num_seqs] + [max_num_seqs]


def padded_size(sizes: Sequence[int], num_sequences: int) -> int | None:
    """The least of the ascending sizes that so many sequences fit; None when none does."""
    place = bisect_left(sizes, num_sequences)
    return sizes[place] if place < len(sizes) else None
