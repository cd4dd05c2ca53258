"""How matmuls are cut: segments by the model's shapes alone, tiles by what is fast."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import pytest
import torch

from pagemesh.kernels.linear.tiles import (
    MOST_SPLIT_TILES,
    Tiles,
    choose_tiles,
    num_segments,
)
from pagemesh.kernels.target import TARGETS

# By outputs (gates alone) and inputs: projections of Llama 3 8B and 70B, Qwen 3 0.6B, GPT-OSS 20B.
SEGMENTS = {
    (6144, 4096): 4,
    (4096, 4096): 4,
    (14336, 4096): 1,
    (4096, 14336): 4,
    (128256, 4096): 1,
    (10240, 8192): 2,
    (8192, 8192): 2,
    (28672, 8192): 1,
    (8192, 28672): 2,
    (4096, 1024): 4,
    (1024, 2048): 8,
    (3072, 1024): 4,
    (1024, 3072): 8,
    (2880, 4096): 8,
    (32, 2880): 8,
    (1, 2048): 8,
    (70, 120): 1,
}


@pytest.mark.parametrize(("shape", "segments"), SEGMENTS.items(), ids=str)
def test_weights_with_few_outputs_are_cut_into_segments(
    shape: tuple[int, int], segments: int
) -> None:
    assert num_segments(*shape) == segments


@pytest.mark.parametrize(
    ("num_outputs", "num_inputs", "num_tokens", "segments", "is_gated", "expected"),
    [
        (4096, 4096, 1, 4, False, Tiles(64, 16, 128, True, 4, 5)),
        (4096, 4096, 16, 4, False, Tiles(64, 16, 128, True, 4, 5)),
        (4096, 4096, 17, 4, False, Tiles(64, 32, 128, True, 4, 4)),
        (4096, 4096, 64, 4, False, Tiles(64, 64, 128, True, 4, 3)),
        (4096, 4096, 65, 4, False, Tiles(64, 128, 64, True, 4, 4)),
        (4096, 4096, 256, 4, False, Tiles(64, 64, 128, False, 4, 3)),
        (4096, 14336, 256, 4, False, Tiles(128, 128, 64, True, 8, 6)),
        (4096, 4096, 512, 4, False, Tiles(128, 128, 64, False, 8, 4)),
        (4096, 4096, 8192, 4, False, Tiles(128, 256, 64, False, 8, 4)),
        (6144, 4096, 1, 4, False, Tiles(64, 16, 128, True, 4, 3)),
        (6144, 4096, 64, 4, False, Tiles(64, 64, 128, False, 4, 4)),
        (6144, 4096, 128, 4, False, Tiles(64, 64, 128, False, 4, 3)),
        (6144, 4096, 256, 4, False, Tiles(128, 128, 64, False, 8, 4)),
        (128256, 4096, 1, 1, False, Tiles(64, 16, 128, False, 4, 3)),
        (128256, 4096, 64, 1, False, Tiles(64, 64, 128, False, 4, 3)),
        (14336, 4096, 1, 1, True, Tiles(64, 16, 64, False, 4, 6)),
        (14336, 4096, 8192, 1, True, Tiles(128, 128, 64, False, 8, 4)),
        (3072, 4096, 8192, 4, True, Tiles(64, 128, 64, False, 8, 6)),
    ],
)
def test_tiles_on_hopper(
    num_outputs: int,
    num_inputs: int,
    num_tokens: int,
    segments: int,
    is_gated: bool,
    expected: Tiles,
) -> None:
    tiles = choose_tiles(
        num_outputs,
        num_inputs,
        num_tokens,
        segments,
        torch.bfloat16,
        TARGETS[90],
        is_gated=is_gated,
        num_bits=16,
    )
    assert tiles == expected


def choices() -> Iterator[tuple[Tiles, int, int, bool, torch.dtype, int]]:
    for (num_outputs, num_inputs), num_tokens in (
        (shape, num_tokens) for shape in SEGMENTS for num_tokens in (1, 20, 64, 65, 300, 5000)
    ):
        for capability, target in TARGETS.items():
            for dtype in (torch.bfloat16, torch.float32):
                for is_gated in (False, True):
                    segments = num_segments(num_outputs, num_inputs)
                    tiles = choose_tiles(
                        num_outputs,
                        num_inputs,
                        num_tokens,
                        segments,
                        dtype,
                        target,
                        is_gated=is_gated,
                        num_bits=8 * dtype.itemsize,
                    )
                    yield tiles, num_outputs, num_tokens, is_gated, dtype, capability


def test_stages_fit_into_shared_memory_and_split_tiles_have_counters() -> None:
    num_split = 0
    for tiles, num_outputs, num_tokens, is_gated, dtype, capability in choices():
        rows = tiles.block_out * (2 if is_gated else 1) + tiles.block_t
        num_buffers = tiles.num_stages - (capability < 90)
        used = num_buffers * rows * tiles.block_k * dtype.itemsize
        assert used <= TARGETS[capability].shared_bytes
        assert 128 % tiles.block_k == 0
        if tiles.is_split:
            num_split += 1
            num_tiles = -(-num_outputs // tiles.block_out) * -(-num_tokens // tiles.block_t)
            assert num_tiles <= MOST_SPLIT_TILES
    assert num_split > 100


def test_steps_of_powers_of_two_need_all_tiles_that_there_are() -> None:
    """So that a device which computed those compiles nothing any more."""
    for num_outputs, num_inputs in SEGMENTS:
        for target in TARGETS.values():
            choose = partial(
                choose_tiles,
                num_outputs,
                num_inputs,
                segments=num_segments(num_outputs, num_inputs),
                dtype=torch.bfloat16,
                target=target,
                is_gated=num_inputs == 4096,
                num_bits=16,
            )
            known = {choose(1 << index) for index in range(13)}
            assert {choose(num_tokens) for num_tokens in range(1, 4096, 3)} <= known
