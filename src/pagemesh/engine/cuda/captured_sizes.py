"""How many sequences, or tokens, the captured steps are for."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from typing import Final

_CHUNK_SIZES: Final = (16, 32, 64, 96, 128, 192, 256, 384, 512, 768, 1024)
"""In steps of a half or a third: of many tokens, each that is padded costs time. A step of more tokens takes a GPU so
long that a host starts its kernels meanwhile."""


def decode_sizes(max_num_seqs: int) -> list[int]:
    """Sequences of the decodes to capture, ascending: close where a padded row costs much, the last one fits every
    decode.

    1, 2, 4, then multiples of 8 up to 256 and of 16 beyond, as in vLLM (`cudagraph_capture_sizes`).
    """
    sizes = [1, 2, 4, *range(8, 256, 8), *range(256, max_num_seqs, 16)]
    return [size for size in sizes if size < max_num_seqs] + [max_num_seqs]


def chunk_sizes(max_num_batched_tokens: int) -> list[int]:
    """Tokens of the steps with chunks of prompts to capture, ascending. Of one token there is no chunk."""
    if max_num_batched_tokens < 2:
        return []
    sizes = [size for size in _CHUNK_SIZES if size < max_num_batched_tokens]
    is_last = max_num_batched_tokens <= _CHUNK_SIZES[-1]
    return [*sizes, max_num_batched_tokens] if is_last else sizes


def padded_size(sizes: Sequence[int], number: int) -> int | None:
    """The least of the ascending sizes that so many fit; None when none does."""
    place = bisect_left(sizes, number)
    return sizes[place] if place < len(sizes) else None
