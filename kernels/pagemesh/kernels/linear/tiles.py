"""How a matmul is cut into programs: pure functions of its shape and of the GPU.

`num_segments` decides bits and so knows nothing of tokens; `choose_tiles` decides speed alone.
"""

from __future__ import annotations

import functools
from typing import Final, NamedTuple

import torch

from pagemesh.kernels.launch import dot_type, next_power_of_2
from pagemesh.kernels.target import Target

_FEWEST_PROGRAMS: Final = 200
"""That keep a GPU's memory busy, about: with a 64 of outputs each a smaller weight is cut into segments."""

_SHORTEST_SEGMENT: Final = 256
"""Inputs; below, programs spend their time with starting and with adding up."""

_MOST_SEGMENTS: Final = 16

_MOST_INPUTS_AT_ONCE: Final = 8192
"""That a program of few outputs and tokens reads alone where segments could be programs."""

SMALL: Final = 64
"""Outputs of a tile, and most tokens of one, where the time is that of reading the weight."""

LARGE: Final = 128
"""Outputs and tokens of a tile, where it is that of multiplying."""

MOST_SPLIT_TILES: Final = 256
"""Tiles whose segments are programs of their own, at most."""

PROMOTED: Final = 128
"""Inputs whose products tensor cores add up before they are added to a float32, of floats of 8 bits."""

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


def choose_block_t(num_tokens: int, num_experts: int = 1) -> int:
    """Tokens of a tile, where each token is multiplied with the weight of one of the experts."""
    mean = -(-num_tokens // num_experts)
    block_t = 16
    while block_t < min(mean, SMALL):
        block_t *= 2
    return block_t if mean <= SMALL else LARGE


def most_token_tiles(num_tokens: int, block_t: int, num_experts: int = 1) -> int:
    """Tiles of tokens that there may be, whichever experts the tokens belong to."""
    return (num_tokens + min(num_tokens, num_experts) * (block_t - 1)) // block_t


@functools.lru_cache(maxsize=4096)
def choose_tiles(
    num_outputs: int,
    num_inputs: int,
    num_tokens: int,
    segments: int,
    dtype: torch.dtype,
    target: Target,
    *,
    is_gated: bool,
    num_bits: int,
    num_experts: int = 1,
) -> Tiles:
    """The tiles of a matmul with `num_tokens` rows of `dtype`, at least one, and numbers of `num_bits` in the weight.

    Without experts they are those of the next power of two: steps of powers of two need all that there are.
    """
    # Hopper and its successor multiply from shared memory; others from registers, desktop Blackwells too, and all but
    # Hopper whole numbers.
    needs_registers = not 90 <= target.capability < (100 if dtype == torch.int8 else 120)
    is_packed = num_bits != 8 * dtype.itemsize
    if num_experts == 1:
        num_tokens = next_power_of_2(num_tokens)
        if dtype.itemsize == 2 and 90 <= target.capability < 100 and not (is_gated or is_packed):
            tiles = _tiles_on_hopper(num_outputs, num_inputs, num_tokens, segments, target)
            if tiles is not None:
                return tiles
    block_t = choose_block_t(num_tokens, num_experts)
    is_large = block_t > SMALL
    block_out, block_k, num_warps = _choose_blocks(
        block_t, dtype, num_bits, is_gated=is_gated, is_cut=segments > 1, on_mma=needs_registers
    )
    num_tiles = -(-num_outputs // block_out) * most_token_tiles(num_tokens, block_t, num_experts)
    most_split = target.num_multiprocessors // 2 if is_large else MOST_SPLIT_TILES
    is_split = segments > 1 and num_tiles <= most_split
    num_programs = num_tiles * segments if is_split else num_tiles
    per_multiprocessor = 1 if is_large else min(-(-num_programs // target.num_multiprocessors), 3)
    rows_bytes = block_out * (2 if is_gated else 1) * block_k * num_bits // 8
    stage_bytes = rows_bytes + block_t * block_k * dtype.itemsize
    # Of many tokens, each stage is so long that few are far enough ahead.
    is_long = num_experts == 1 and num_tokens >= 2 * LARGE and not (is_split or is_gated)
    num_buffers = min(_num_buffers(stage_bytes, per_multiprocessor, target), 4 if is_long else 6)
    return Tiles(block_out, block_t, block_k, is_split, num_warps, num_buffers + needs_registers)


def _choose_blocks(
    block_t: int, dtype: torch.dtype, num_bits: int, *, is_gated: bool, is_cut: bool, on_mma: bool
) -> tuple[int, int, int]:
    """Outputs of a program, inputs that it multiplies at once, and its warps. `on_mma`: operands are in registers;
    `is_cut`: into segments."""
    is_large = block_t > SMALL
    block_out, block_k, num_warps = (LARGE, 64, 8) if is_large else (SMALL, 128, 4)
    if is_gated:
        block_k = 64
        if is_cut or on_mma:
            # Registers hold the sums of gates and of ups already, perhaps those of earlier segments.
            block_out = SMALL
    if is_large and num_bits < 8:
        # Beside the sums registers hold what is being unpacked.
        block_k = 16 if is_gated and on_mma else 32
    if dtype == torch.float32:
        # No matrix instructions: each thread adds up its own few sums, and its operands are in registers.
        block_out, block_k, num_warps = (SMALL, 16, 8) if block_t > 16 else (SMALL, 32, 4)
    if dtype == torch.float8_e4m3fn:
        # What tensor cores may add up, and a sum beside that to which it is added.
        block_k = PROMOTED
        if is_gated or is_cut:
            block_out = 32 if is_large and is_gated and is_cut and on_mma else SMALL
    return block_out, block_k, num_warps


def _num_buffers(stage_bytes: int, per_multiprocessor: int, target: Target) -> int:
    """Stages that fit, two at least; what is in registers takes no memory."""

    def fitting(num_programs: int) -> int:
        # Each program has a kilobyte of its own besides.
        return (target.shared_bytes // num_programs - 1024) // stage_bytes

    found = fitting(per_multiprocessor)
    if found < 3:
        # Fewer programs that read further ahead.
        found = min(fitting(min(per_multiprocessor, 2)), 3)
    return max(found, 2)


def _tiles_on_hopper(
    num_outputs: int, num_inputs: int, num_tokens: int, segments: int, target: Target
) -> Tiles | None:
    """What an H200 was fastest with, where the rule of `choose_tiles` is not; tokens a power of two."""
    processors = target.num_multiprocessors
    num_small = -(-num_outputs // SMALL) * -(-num_tokens // SMALL)
    if segments > 1 and num_tokens == LARGE and num_small <= processors:
        # The segments of narrow tiles, two programs on each multiprocessor.
        return Tiles(SMALL, LARGE, 64, True, 4, 4)
    if segments > 1 and SMALL <= num_tokens <= 2 * LARGE and num_inputs <= _MOST_INPUTS_AT_ONCE:
        # All segments in each program, so that no sums go through memory.
        if 2 * processors // 3 <= num_small <= processors:
            return Tiles(SMALL, SMALL, 128, False, 4, 4)
        if processors < num_small <= 2 * processors:
            return Tiles(SMALL, SMALL, 128, False, 4, 3)
    if num_small >= 32 * processors:
        return Tiles(LARGE, 2 * LARGE, 64, False, 8, 4)
    return None
