"""Numbers out of blocks are those of the `gguf` package, bit for bit."""

from __future__ import annotations

from pathlib import Path

import gguf
import numpy as np
import pytest
import torch

from pagemesh.gguf.blocks import FLOATS, PACKED, dequantise
from pagemesh.gguf.container import read_gguf
from pagemesh.models.checkpoint import Checkpoint
from pagemesh.models.quantization.ggml import Ggml
from tests.support.gguf_files import finish

KINDS = [gguf.GGMLQuantizationType[name] for name in (*FLOATS, *PACKED)]
WIDTH = 1024
ROWS = 301
HALVES = {
    "Q4_0": (0,),
    "Q4_1": (0, 2),
    "Q5_0": (0,),
    "Q5_1": (0, 2),
    "Q8_0": (0,),
    "Q2_K": (80, 82),
    "Q3_K": (108,),
    "Q4_K": (0, 2),
    "Q5_K": (0, 2),
    "Q6_K": (208,),
    "IQ4_NL": (0,),
}
"""Where in a block there are float16, which random bytes would make infinite."""


def random_blocks(kind: gguf.GGMLQuantizationType) -> np.ndarray:
    """Valid ones: [rows, bytes]."""
    draw = np.random.default_rng(7)
    block, size = gguf.GGML_QUANT_SIZES[kind]
    if kind.name in ("F32", "F16", "BF16"):
        numbers = draw.normal(size=(ROWS, WIDTH)).astype(np.float32)
        return gguf.quantize(numbers, kind).view(np.uint8)
    blocks = draw.integers(0, 256, (ROWS * WIDTH // block, size), dtype=np.uint8)
    for at in HALVES.get(kind.name, ()):
        halves = draw.normal(scale=2.0, size=(len(blocks), 1)).astype(np.float16)
        # Subnormal ones among them.
        halves[::7] = np.float16(3e-7)
        blocks[:, at : at + 2] = halves.view(np.uint8)
    if kind.name == "MXFP4":
        blocks[:, 0] = draw.integers(0, 140, len(blocks))
    return blocks.reshape(ROWS, -1)


@pytest.mark.parametrize("num_rows", [1, ROWS])
@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_every_type_gives_the_numbers_of_the_gguf_package(
    tmp_path: Path, kind: gguf.GGMLQuantizationType, num_rows: int
) -> None:
    # Of one row a single block: whatever part of it is looked at lies side by side, in the file itself.
    packed = random_blocks(kind)[:num_rows]
    width = WIDTH
    if num_rows == 1:
        width, size = gguf.GGML_QUANT_SIZES[kind]
        packed = packed[:, :size]
    writer = gguf.GGUFWriter(tmp_path / "model.gguf", "llama")
    writer.add_tensor("t", packed, raw_dtype=kind)
    finish(writer)
    tensor = read_gguf(tmp_path / "model.gguf").tensors["t"]
    assert tensor.shape[-1] == width
    assert bytes(tensor.blocks) == packed.tobytes()
    found = np.concatenate(list(dequantise(tensor)))
    expected = gguf.dequantize(packed, kind).reshape(-1).astype(np.float32)
    assert np.isfinite(expected).all()
    assert np.array_equal(found.view(np.uint32), expected.view(np.uint32))
    check_weight(tmp_path / "model.gguf", expected)


def check_weight(path: Path, expected: np.ndarray) -> None:
    """What models read of packed blocks stands for the same."""
    shape = read_gguf(path).tensors["t"].shape
    with Checkpoint.open(path, torch.float32) as checkpoint:
        packing = Ggml().find("t", shape, checkpoint.entries)
        if packing is not None:
            weight = packing.make({"blocks": checkpoint.read_blocks("t")}, torch.float32)
            assert np.array_equal(weight.dense().numpy().reshape(-1), expected)
