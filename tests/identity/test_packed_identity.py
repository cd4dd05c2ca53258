"""Logits of packed weights are the same bits however a sequence is computed: a twin of each recipe."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import gguf
import pytest
import structlog
import torch

from pagemesh.config import ModelConfig
from pagemesh.models.loader import load_model
from pagemesh.models.quantization.ways import WAY_NAMES
from tests.identity.checkpoints import ONE_FILE, RECIPES, VOCAB_SIZE, Recipe, make_checkpoint
from tests.identity.test_bit_identity import check_bits
from tests.support.gguf_files import write_gguf
from tests.support.quantised_checkpoints import FORMATS, MXFP4, quantise
from tests.support.rounded_demo import Floats
from tests.unit.models.test_gguf_models import CHANGES, NAMES

FILES = ("W8A8", "AWQ, groups of 16", "NF4, blocks of 16")


@pytest.mark.product(most=2)
@pytest.mark.parametrize("form", [*WAY_NAMES, *FILES])
@pytest.mark.parametrize("name", RECIPES)
def test_logits_of_packed_weights_are_the_same_bits(
    name: str, form: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    is_file = form in FILES
    make_checkpoint(tmp_path, packable(RECIPES[name], heads_too=is_file))
    folder, way = tmp_path, None if is_file else form
    if way is None:
        folder = tmp_path / "quantised"
        quantise(tmp_path, folder, tmp_path / "floats", FORMATS[form])
    told = check_loaded(folder, way, monkeypatch)
    assert len(told) == (way is not None)
    assert not any(".down." in each for left in told for each in left)


def check_loaded(folder: Path, way: str | None, monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """Check a model in bfloat16; the matrices that loading told to have left dense, each time that it did."""
    config = ModelConfig(str(folder), dtype="bfloat16", quantization=way, threads=2)
    num_threads = torch.get_num_threads()
    try:
        with structlog.testing.capture_logs() as logs:
            model = load_model(config)
        check_bits(model, monkeypatch)
    finally:
        torch.set_num_threads(num_threads)
    return [each["left_dense"] for each in logs if each["event"] == "weights are quantised"]


@pytest.mark.product(most=1)
@pytest.mark.parametrize("kind", ["Q4_0", "Q5_1", "Q8_0"])
@pytest.mark.parametrize("name", NAMES)
def test_logits_of_a_packed_file_are_the_same_bits(
    name: str, kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe = packable(RECIPES[name])
    settings = recipe.settings | CHANGES.get(name, {})
    make_checkpoint(tmp_path, dataclasses.replace(recipe, settings=settings))
    type_ = gguf.GGMLQuantizationType[kind]

    def pack(name: str, tensor: Floats) -> tuple[Any, gguf.GGMLQuantizationType | None]:
        if tensor.ndim == 1 or tensor.shape[-1] % 32 or "gate_inp" in name:
            return tensor, None
        return gguf.quantize(tensor, type_), type_

    file = write_gguf(tmp_path, tmp_path / "model.gguf", pack, **tokenizer_keys())
    check_loaded(file, None, monkeypatch)


def tokenizer_keys() -> dict[str, Any]:
    """A file of a decoder has to have a tokenizer."""
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "default",
        "tokenizer.ggml.tokens": [f"t{id_}" for id_ in range(VOCAB_SIZE)],
        "tokenizer.ggml.token_type": [1] * VOCAB_SIZE,
        "tokenizer.ggml.merges": ["t 0"],
    }


def test_logits_of_experts_in_mxfp4_are_the_same_bits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe = packable(RECIPES["GPT-OSS"])
    make_checkpoint(tmp_path, recipe)
    assert quantise(tmp_path, tmp_path / "quantised", tmp_path / "floats", MXFP4)
    check_loaded(tmp_path / "quantised", None, monkeypatch)


def packable(recipe: Recipe, *, heads_too: bool = False) -> Recipe:
    """In one file, of sizes in which rows are groups of 32 but for heads that are not, unless they shall be, too."""
    own = recipe.settings.get("text_config", recipe.settings)
    sizes = {"hidden_size": 96, "intermediate_size": 96}
    if "original_max_position_embeddings" in own:
        # As many dimensions of a head as there are factors for.
        sizes["num_attention_heads"] = 8
    of_experts = {"moe_intermediate_size": 32, "shared_expert_intermediate_size": 64}
    more = of_experts | ({"head_dim": 32} if heads_too else {})
    sizes |= {key: size for key, size in more.items() if key in own}
    settings = own | sizes
    if own is not recipe.settings:
        settings = recipe.settings | {"text_config": settings}
    return dataclasses.replace(recipe, settings=settings, shard_size=ONE_FILE)
