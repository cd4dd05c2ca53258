"""GGUF files of the models with random weights, for engines that read no others, made once on this machine, beside them;
and of other GGUF files."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import gguf
import numpy as np

from pagemesh.gguf.blocks import dequantise
from pagemesh.gguf.model import open_gguf

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from tests.support.gguf_files import add, finish, write_gguf


def gguf_file(folder: Path, kind: str) -> Path:
    """The model as a file whose matrices have this type, written when it is not there yet."""
    path = folder.with_name(f"{folder.name}-{kind}.gguf")
    if path.is_file():
        return path
    type_ = gguf.GGMLQuantizationType[kind.upper()]

    def pack(name: str, tensor: np.ndarray) -> tuple[np.ndarray, gguf.GGMLQuantizationType | None]:
        return (tensor, None) if tensor.ndim < 2 else (gguf.quantize(tensor, type_), type_)

    vocab = json.loads((folder / "tokenizer.json").read_text(encoding="utf-8"))["model"]["vocab"]
    words = sorted(vocab, key=vocab.__getitem__)
    tokenizer = {
        "model": "llama",
        "tokens": words,
        "scores": [0.0] * len(words),
        "token_type": [int(gguf.TokenType.NORMAL)] * len(words),
        "bos_token_id": vocab[words[0]],
        "eos_token_id": vocab[words[0]],
        "add_bos_token": False,
    }
    draft = path.with_suffix(f".{os.getpid()}")
    changes = {f"tokenizer.ggml.{key}": value for key, value in tokenizer.items()}
    write_gguf(folder, draft, pack, **changes)
    draft.rename(path)
    return path


def write_rounded(file: Path, path: Path) -> Path:
    """The same GGUF file with its matrices in Q8_0."""
    model, kind = open_gguf(file), gguf.GGMLQuantizationType.Q8_0
    writer = gguf.GGUFWriter(path, str(model.metadata["general.architecture"]))
    for key, value in model.metadata.items():
        if key not in ("general.architecture", "general.file_type"):
            add(writer, key, value if isinstance(value, str | int | float) else list(value))
    for name, tensor in model.tensors.items():
        numbers = np.concatenate([*dequantise(tensor)]).reshape(tensor.shape)
        if numbers.ndim == 1:
            writer.add_tensor(name, numbers)
        else:
            writer.add_tensor(name, gguf.quantize(numbers, kind), raw_dtype=kind)
    finish(writer)
    return path


def num_matrix_bytes(path: Path) -> int:
    """Of all that a file has but the table of tokens."""
    tensors = gguf.GGUFReader(path).tensors
    return sum(int(each.n_bytes) for each in tensors if each.name != "token_embd.weight")
