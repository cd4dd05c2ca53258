"""Weights brought into the panels of this processor's class, as loading a model does, beside torch's copies of views.

Bytes: a weight is read once and written once.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from contest import Contest

from pagemesh.kernels.linear.packed import pack_halves, unpack_halves
from pagemesh.kernels.linear.panel_packing import (
    CodeLines,
    pack_lines,
    pack_words,
    pair_nibbles,
)

SHAPE = (8192, 2048)
"""Of one matrix, whose panels fit no cache."""


def contests(device: torch.device, *, quick: bool) -> Iterator[Contest]:
    """Words of bfloat16, lines of codes, and nibbles of GGUF's blocks."""
    if device.type != "cpu":
        return
    num_out, num_in = SHAPE
    columns = torch.randperm(num_out)
    num_panels = num_out // 32
    dense = torch.randn(SHAPE).bfloat16()
    words = torch.empty(num_panels, num_in // 32, 2, 16, 16, dtype=torch.int32)

    def transpose() -> None:
        squares = dense[columns].view(torch.int32).view(num_panels, 2, 16, num_in // 32, 16)
        words.copy_(squares.permute(0, 3, 1, 4, 2))

    yield Contest(
        "bfloat16 into tiles",
        2 * dense.nbytes,
        0.0,
        {"ours": lambda: pack_words(dense, columns, "tiles", words), "torch": transpose},
    )
    codes = torch.randint(0, 256, (num_out, num_in // 2), dtype=torch.uint8)
    panels = torch.empty(num_panels, 16 * num_in, dtype=torch.uint8)
    places = CodeLines(4, 0, 2, turns_codes=False)

    def merge() -> None:
        inputs = unpack_halves(codes[columns]).view(num_panels, 32, num_in // 128, 2, 2, 32)
        lines = inputs[..., 0, :] | inputs[..., 1, :] << 4
        panels.view(num_panels, num_in // 128, 32, 2, 32).copy_(lines.transpose(1, 2))

    yield Contest(
        "codes of 4 bits into lines",
        2 * codes.nbytes,
        0.0,
        {"ours": lambda: pack_lines(codes, columns, places, panels), "torch": merge},
    )
    blocks = torch.randint(0, 256, (num_out * num_in // 32, 18), dtype=torch.uint8)[:, 2:]

    def pair() -> None:
        pack_halves(torch.stack((blocks & 15, blocks >> 4), 1).flatten(1))

    yield Contest(
        "nibbles of blocks",
        2 * blocks.numel(),
        0.0,
        {"ours": lambda: pair_nibbles(blocks, 16), "torch": pair},
    )
