"""Moving KV blocks: every byte is read once and written once, and summed up on the way where KV is transferred.

Bytes: the blocks, twice. Flops: none that count.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import torch
from contest import Contest

from pagemesh.kernels.block_copy import make_block_copier

SHAPES = {"cpu": (24, 512), "cuda": (64, 4096)}
"""Planes and words of eight bytes of a block's plane: of a model of 160M, and of Llama 3 8B."""

NUM_BLOCKS = {"cpu": 512, "cuda": 4096}


def contests(device: torch.device, *, quick: bool) -> Iterator[Contest]:
    """Some blocks of a pool into a buffer, with and without a checksum, and back."""
    num_planes, num_words = SHAPES[device.type]
    num_blocks = NUM_BLOCKS[device.type]
    pool = torch.randint(0, 1 << 60, (num_planes, num_blocks, num_words), device=device)
    copier = make_block_copier(device)
    for count in (64,) if quick else (8, 64, num_blocks // 4):
        sources, targets = torch.randperm(num_blocks, device=device)[: 2 * count].view(2, -1)
        buffer = torch.empty(num_planes, count, num_words, dtype=torch.int64, device=device)
        num_bytes = 2 * buffer.nbytes
        yield Contest(
            f"gather of {count} blocks with a checksum",
            num_bytes,
            0.0,
            {
                "ours": partial(copier.gather, pool, sources, buffer),
                "torch, without": partial(torch.index_select, pool, 1, sources, out=buffer),
            },
        )
        yield Contest(
            f"scatter of {count} blocks with a checksum",
            num_bytes,
            0.0,
            {
                "ours": partial(copier.scatter, buffer, pool, sources),
                "torch, without": partial(pool.index_copy_, 1, sources, buffer),
            },
        )
        yield Contest(
            f"copy of {count} blocks",
            num_bytes,
            0.0,
            {"ours": partial(copier.copy, pool, sources, pool, targets)},
        )
