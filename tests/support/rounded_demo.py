"""The demo model in other formats, rounded to the nearest codes, as their writers begin: GGUF files, and AWQ's layout."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any, Final

import gguf
import numpy as np
import numpy.typing as npt
import torch
from safetensors.torch import load_file

from tests.hygiene.tree import ROOT
from tests.support.gguf_files import write_gguf
from tests.support.quantised_checkpoints import write
from tests.support.quantising import awq_words

DEMO: Final = ROOT / "models/demo"
AWQ_GROUP: Final = 64
_Q8_0, _Q4_K = gguf.GGMLQuantizationType.Q8_0, gguf.GGMLQuantizationType.Q4_K

Floats = npt.NDArray[np.float32]
Bytes = npt.NDArray[np.uint8]


def write_demo_gguf(path: Path, kind: gguf.GGMLQuantizationType) -> Path:
    """All matrices in Q8_0, or in Q4_K but for the table of tokens, which is the head."""

    def pack(name: str, tensor: Floats) -> Any:
        if tensor.ndim == 1:
            return tensor, None
        if kind == _Q4_K and name != "token_embd.weight":
            return q4_k(tensor), _Q4_K
        return gguf.quantize(tensor, _Q8_0), _Q8_0

    return write_gguf(DEMO, path, pack, **_tokenizer_keys())


def _tokenizer_keys() -> dict[str, Any]:
    tokenizer = json.loads((DEMO / "tokenizer.json").read_text())
    ids = dict(tokenizer["model"]["vocab"])
    special = {each["content"]: each["id"] for each in tokenizer["added_tokens"]}
    tokens = sorted(ids | special, key=(ids | special).__getitem__)
    config = json.loads((DEMO / "config.json").read_text())
    return {
        "tokenizer.ggml.model": "gpt2",
        # Digits are apart in both.
        "tokenizer.ggml.pre": "smollm",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": [3 if token in special else 1 for token in tokens],
        "tokenizer.ggml.merges": [" ".join(pair) for pair in tokenizer["model"]["merges"]],
        "tokenizer.ggml.eos_token_id": config["eos_token_id"],
        "tokenizer.chat_template": (DEMO / "chat_template.jinja").read_text(),
    }


def q4_k(weight: Floats) -> Bytes:
    """[out, in] → [out, bytes]: of 256 inputs two float16, eight scales and minimums of 6 bits, and codes of 4."""
    groups = weight.reshape(-1, 8, 32)
    least = np.minimum(groups.min(2), 0)
    scales, minimums = (groups.max(2) - least) / 15, -least
    units = [(each.max(1, keepdims=True) / 63).astype(np.float16) for each in (scales, minimums)]
    wide = [np.where(unit == 0, 1, unit).astype(np.float32) for unit in units]
    s, m = (
        np.clip(np.rint(each / unit), 0, 63).astype(np.uint8)
        for each, unit in zip((scales, minimums), wide, strict=True)
    )
    step, low = (s * wide[0])[..., None], (m * wide[1])[..., None]
    codes = np.clip(np.rint((groups + low) / np.where(step == 0, 1, step)), 0, 15).astype(np.uint8)
    first, last = slice(4), slice(4, 8)
    sixes = (
        s[:, first] | s[:, last] >> 4 << 6,
        m[:, first] | m[:, last] >> 4 << 6,
        s[:, last] & 15 | (m[:, last] & 15) << 4,
    )
    pairs = codes.reshape(-1, 4, 2, 32)
    halves = (pairs[:, :, 0] | pairs[:, :, 1] << 4).reshape(len(codes), -1)
    blocks = np.concatenate([*(unit.view(np.uint8) for unit in units), *sixes, halves], axis=1)
    return blocks.reshape(len(weight), -1)


def write_demo_awq(folder: Path) -> Path:
    """All matrices but the table of tokens in 4 bits, in groups of 64 with zero points."""
    config = json.loads((DEMO / "config.json").read_text())
    method = {"quant_method": "awq", "bits": 4, "group_size": AWQ_GROUP, "zero_point": True}
    tensors: dict[str, torch.Tensor] = {}
    for name, tensor in load_file(DEMO / "model.safetensors").items():
        if tensor.dim() == 1 or "embed" in name:
            tensors[name] = tensor
            continue
        groups = tensor.view(len(tensor), -1, AWQ_GROUP)
        least, largest = groups.amin(2).clamp(max=0), groups.amax(2).clamp(min=0)
        scales = ((largest - least) / 15).half()
        zeros = (-least / scales).round()
        codes = ((groups / scales[..., None]).round() + zeros[..., None]).clamp(0, 15)
        module = name.removesuffix("weight")
        tensors[f"{module}qweight"] = awq_words(codes.view_as(tensor).long())
        tensors[f"{module}qzeros"] = awq_words(zeros.long())
        tensors[f"{module}scales"] = scales.t().contiguous()
    write(folder, tensors, config | {"quantization_config": method | {"version": "gemm"}})
    for file in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
        shutil.copy(DEMO / file, folder)
    return folder
