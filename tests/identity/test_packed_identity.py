"""Logits of packed weights are the same bits however a sequence is computed: a twin of each recipe."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
import structlog
import torch

from pagemesh.config import ModelConfig
from pagemesh.models.loader import load_model
from pagemesh.models.quantization.ways import WAY_NAMES
from tests.identity.checkpoints import ONE_FILE, RECIPES, Recipe, make_checkpoint
from tests.identity.test_bit_identity import check_bits
from tests.support.quantised_checkpoints import FORMATS, quantise


@pytest.mark.product(most=2)
@pytest.mark.parametrize("form", [*WAY_NAMES, "W8A8"])
@pytest.mark.parametrize("name", RECIPES)
def test_logits_of_packed_weights_are_the_same_bits(
    name: str, form: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_checkpoint(tmp_path, packable(RECIPES[name]))
    folder, way = tmp_path, None if form == "W8A8" else form
    if way is None:
        folder = tmp_path / "quantised"
        quantise(tmp_path, folder, tmp_path / "floats", FORMATS[form])
    config = ModelConfig(str(folder), dtype="bfloat16", quantization=way, threads=2)
    num_threads = torch.get_num_threads()
    try:
        with structlog.testing.capture_logs() as logs:
            model = load_model(config)
        check_bits(model, monkeypatch)
    finally:
        torch.set_num_threads(num_threads)
    told = [each["left_dense"] for each in logs if each["event"] == "weights are quantised"]
    assert len(told) == (way is not None)
    assert not any(".down." in each for left in told for each in left)


def packable(recipe: Recipe) -> Recipe:
    """In one file, of sizes in which rows are groups of 32 but for heads that are not."""
    own = recipe.settings.get("text_config", recipe.settings)
    sizes = {"hidden_size": 96, "intermediate_size": 96}
    if "original_max_position_embeddings" in own:
        # As many dimensions of a head as there are factors for.
        sizes["num_attention_heads"] = 8
    if "moe_intermediate_size" in own:
        sizes |= {"moe_intermediate_size": 32, "shared_expert_intermediate_size": 64}
    settings = own | sizes
    if own is not recipe.settings:
        settings = recipe.settings | {"text_config": settings}
    return dataclasses.replace(recipe, settings=settings, shard_size=ONE_FILE)
