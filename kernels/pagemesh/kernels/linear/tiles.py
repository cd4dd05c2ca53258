"""How a product is cut into programs: pure functions of its shape and of the GPU.

`num_segments` decides bits and so knows nothing of tokens; `choose_tiles` decides speed alone.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import torch

from pagemesh.kernels.launch import dot_type
from pagemesh.kernels.target import Target

_FEWEST_PROGRAMS: Final = 200
"""That keep a GPU's memory busy, about: with a 64 of outputs each a smaller weight is cut into segments."""

_SHORTEST_SEGMENT: Final = 256
"""Inputs; below, programs spend their time with starting and with adding up."""

_MOST_SEGMENTS: Final = 16

SMALL: Final = 64
"""Outputs of a tile, and most tokens of one, where the time is that of reading the weight."""

LARGE: Final = 128
"""Outputs and tokens of a tile, where it is that of multiplying."""

MOST_SPLIT_TILES: Final = 256
"""Tiles whose segments are programs of their own, at most."""

GROUP: Final = 8
"""Tiles of outputs that share their tiles of tokens in the second-level cache."""


class Tiles(NamedTuple):
    """Constants of a launch."""

    block_out: int
    """Outputs of a program."""

    block_t: int
    """Tokens of a program."""

    block_k: int
    """Inputs that are multiplied at once; always a divisor of 128, a multiple of 16."""

    is_split: bool
    """Whether segments are programs of their own."""

    num_warps: int
    num_stages: int

    def constants(self, num_inputs: int, dtype: torch.dtype) -> dict[str, object]:
        """What a kernel is told of them, for inputs of this number and type."""
        return {
            "IS_SPLIT": self.is_split,
            "IS_WHOLE": num_inputs % self.block_k == 0,
            "DOT_TYPE": dot_type(dtype),
            "BLOCK_OUT": self.block_out,
            "BLOCK_T": self.block_t,
            "BLOCK_K": self.block_k,
        }


def num_segments(num_outputs: int, num_inputs: int) -> int:
    """Into how many segments the inputs of a weight are cut.

    A function of the model's shapes alone: it decides in which order a sum is computed. `num_outputs` counts
    gates and their ups once.
    """
    num_tiles = -(-num_outputs // SMALL)
    segments = 1
    while (
        num_tiles * segments < _FEWEST_PROGRAMS
        and num_inputs >= 2 * segments * _SHORTEST_SEGMENT
        and segments < _MOST_SEGMENTS
    ):
        segments *= 2
    return segments


def choose_tiles(
    num_outputs: int,
    num_tokens: int,
    segments: int,
    dtype: torch.dtype,
    target: Target,
    *,
    is_gated: bool,
) -> Tiles:
    """The tiles of a product with `num_tokens` rows, at least one."""
    num_halves = 2 if is_gated else 1
    if dtype == torch.float32:
        # No matrix instructions: sums of 16 to 32 products in each thread.
        block_out, block_t, block_k, num_warps = SMALL, 16, 32, 4
        if num_tokens > SMALL:
            block_t, block_k, num_warps = SMALL, 16, 8
    elif num_tokens <= SMALL:
        block_out, block_t, num_warps = SMALL, _at_least(16, num_tokens), 4
        block_k = 64 if is_gated else 128
    else:
        block_out, block_t, block_k, num_warps = LARGE, LARGE, 64, 8
        if is_gated and segments > 1:
            block_out = SMALL
    num_tiles = -(-num_outputs // block_out) * -(-num_tokens // block_t)
    is_large = num_tokens > SMALL
    most_split = target.num_multiprocessors // 2 if is_large else MOST_SPLIT_TILES
    is_split = segments > 1 and num_tiles <= most_split
    num_programs = num_tiles * segments if is_split else num_tiles
    per_multiprocessor = 1 if is_large else min(-(-num_programs // target.num_multiprocessors), 3)
    stage_bytes = (block_out * num_halves + block_t) * block_k * dtype.itemsize
    # Each program has a kilobyte of its own besides. Before Hopper what is being multiplied is in
    # registers, and a stage more takes no memory.
    most_stages = max((target.shared_bytes // per_multiprocessor - 1024) // stage_bytes, 2)
    most_stages += target.capability < 90
    return Tiles(block_out, block_t, block_k, is_split, num_warps, min(max(most_stages, 2), 6))


def _at_least(smallest: int, number: int) -> int:
    """The power of two from `smallest` on that holds a number."""
    while smallest < number:
        smallest *= 2
    return smallest
