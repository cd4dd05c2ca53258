"""Encoders in GGUF files: the vectors of the folders that they were made of, texts included, bit for bit."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

import gguf
import numpy as np
import pytest
import torch

from pagemesh import LLM
from pagemesh.config import ModelConfig
from pagemesh.core.engine import Pooling
from pagemesh.models.loader import load_model
from tests.identity.encoder_checkpoints import RECIPES, EncoderRecipe, make_encoder, make_tokenizer
from tests.support.gguf_files import ARCHITECTURES, write_gguf
from tests.unit.gguf.test_gguf_blocks import HALVES

NAMES: Final = (
    "BERT",
    "BERT mean",
    "BERT with a head",
    "RoBERTa mean",
    "XLM-RoBERTa",
    "DistilBERT mean",
    "ModernBERT mean",
)
POOLINGS: Final = {"mean": 1, "cls": 2, "lasttoken": 3}
"""As llama.cpp numbers them."""

TEXTS: Final = (
    "",
    "The capital of France is Paris.",
    "Rome, Paris: capitals!",
    "crème brûlée 123",
    "the " * 60,
    "[CLS] a [MASK] is 日本",
)
WIDE: Final = {"hidden_size": 256, "intermediate_size": 512, "num_attention_heads": 4}
TYPES: Final = ("Q8_0", "Q4_0", "Q4_K", "Q5_K", "Q6_K", "IQ4_NL")


def tokenizer_keys(vocab_size: int) -> dict[str, Any]:
    """The folder's WordPiece, as the converter writes it: of ids without a token, too."""
    tokens = [f"▁[PAD{id_}]" for id_ in range(vocab_size)]
    types = [5] * vocab_size
    for token, id_ in make_tokenizer().get_vocab().items():
        is_special = token.startswith("[")
        types[id_] = 3 if is_special else 1
        tokens[id_] = token if is_special else f"▁{token}".replace("▁##", "")
    return {
        "tokenizer.ggml.model": "bert",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": types,
        "tokenizer.ggml.unknown_token_id": 1,
        "tokenizer.ggml.seperator_token_id": 3,
        "tokenizer.ggml.padding_token_id": 0,
        "tokenizer.ggml.cls_token_id": 2,
    }


def write(folder: Path, path: Path, recipe: EncoderRecipe, **changes: Any) -> Path:
    config = json.loads((folder / "config.json").read_text())
    keys = tokenizer_keys(config["vocab_size"])
    if recipe.pooling is not None:
        architecture = ARCHITECTURES[config["model_type"]]
        keys[f"{architecture}.pooling_type"] = POOLINGS[recipe.pooling]
    return write_gguf(folder, path, **keys | changes)


def vectors(model: Path, dtype: str = "auto") -> list[tuple[float, ...]]:
    with LLM(str(model), dtype=dtype, max_model_len=80, max_num_seqs=4) as llm:
        return [output.outputs.embedding for output in llm.embed(list(TEXTS), use_tqdm=False)]


@pytest.mark.parametrize("name", NAMES)
def test_vectors_of_texts_are_those_of_the_folder(tmp_path: Path, name: str) -> None:
    recipe = RECIPES[name]
    make_encoder(tmp_path, recipe)
    expected = vectors(tmp_path)
    assert vectors(write(tmp_path, tmp_path / "model.gguf", recipe)) == expected
    assert len({tuple(vector) for vector in expected}) == len(TEXTS)


@pytest.mark.parametrize(
    ("pooling_type", "pooling"), [(0, "cls"), (1, "mean"), (2, "cls"), (3, "last")]
)
def test_the_file_says_how_vectors_are_pooled(
    tmp_path: Path, pooling_type: int, pooling: Any
) -> None:
    make_encoder(tmp_path, RECIPES["BERT"])
    changes = {"bert.pooling_type": pooling_type}
    path = write(tmp_path, tmp_path / "model.gguf", RECIPES["BERT"], **changes)
    model = load_model(ModelConfig(str(path)))
    assert model.pooling == Pooling(pooling, normalize=True)
    assert (model.dtype, model.max_model_len) == (torch.float32, 100)


@pytest.mark.parametrize("kind", TYPES)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_packed_weights_give_the_vectors_of_the_numbers_that_they_stand_for(
    tmp_path: Path, kind: str, dtype: str
) -> None:
    recipe = EncoderRecipe("BertConfig", "mean", settings=WIDE)
    make_encoder(tmp_path, recipe)
    dense, packed = tmp_path / "dense.gguf", tmp_path / "packed.gguf"
    type_ = gguf.GGMLQuantizationType[kind]

    def pack(name: str, tensor: np.ndarray) -> Any:
        return (blocks_of(tensor, type_), type_) if is_packed(name) else (tensor, None)

    def unpack(name: str, tensor: np.ndarray) -> Any:
        whole = gguf.dequantize(blocks_of(tensor, type_), type_) if is_packed(name) else tensor
        return whole, None

    config = json.loads((tmp_path / "config.json").read_text())
    keys = tokenizer_keys(config["vocab_size"]) | {"bert.pooling_type": 1}
    write_gguf(tmp_path, packed, pack, **keys)
    write_gguf(tmp_path, dense, unpack, **keys)
    assert packed.stat().st_size < dense.stat().st_size / 2
    assert vectors(packed, dtype) == vectors(dense, dtype)


def is_packed(name: str) -> bool:
    """All that llama.cpp quantises."""
    others = ("norm.weight", "position_embd.weight", "token_types.weight")
    return name.endswith(".weight") and not name.endswith(others)


def blocks_of(tensor: np.ndarray, kind: gguf.GGMLQuantizationType) -> np.ndarray:
    """Of a matrix, where the package can quantise, and otherwise random ones of small numbers."""
    if kind.name in ("Q8_0", "Q4_0"):
        return gguf.quantize(tensor, kind)
    block, size = gguf.GGML_QUANT_SIZES[kind]
    draw = np.random.default_rng(len(tensor))
    blocks = draw.integers(0, 256, (tensor.size // block, size), dtype=np.uint8)
    for at in HALVES[kind.name]:
        halves = draw.normal(scale=1e-4, size=(len(blocks), 1)).astype(np.float16)
        blocks[:, at : at + 2] = halves.view(np.uint8)
    return blocks.reshape(len(tensor), -1)
