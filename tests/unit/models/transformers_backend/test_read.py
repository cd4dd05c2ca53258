"""A model's outline, read without weights, has the numbers of the model that is loaded."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from pagemesh.config import ModelConfig
from pagemesh.core.kv import KvLayout
from pagemesh.errors import ConfigError
from pagemesh.models.loader import load_model
from pagemesh.models.transformers_backend.read import outline
from pagemesh.sizing.plan import GIB, Hardware, StepLimits, make_outline_plan
from tests.identity.checkpoints import make_checkpoint
from tests.identity.transformers_recipes import TRANSFORMERS_RECIPES
from tests.unit.models.transformers_backend.tiny_models import make_model

# An MLP of 88, or queries (and, in one matrix, keys and values) that are wider, or two experts whose
# gate and up are one.
INNER_SIZES = {
    "OPT": 88,
    "GPT-BigCode": 72 + 2 * 12,
    "GPT-NeoX": 3 * 72,
    "Cohere 2": 88,
    "DeepSeek V3": 2 * 2 * 40,
    "Granite MoE": 2 * 2 * 88,
    "Gemma 2 by transformers": 6 * 20,
    "GPT-OSS by transformers": 2 * 2 * 88,
}
ON_CPU = Hardware("cpu", GIB)


@pytest.mark.parametrize("name", TRANSFORMERS_RECIPES)
def test_an_outline_has_the_numbers_of_the_loaded_model(name: str, tmp_path: Path) -> None:
    model = make_checkpoint(tmp_path / "model", TRANSFORMERS_RECIPES[name])
    loaded = load_model(ModelConfig(str(tmp_path / "model"), model_impl="transformers"))
    (tmp_path / "config").mkdir()
    shutil.copy(tmp_path / "model/config.json", tmp_path / "config")
    found = outline(tmp_path / "config", max_model_len=None)
    assert found.architecture == type(model).__name__
    assert found.num_parameters == sum(parameter.numel() for parameter in model.parameters())
    assert (found.vocab_size, found.max_model_len) == (loaded.vocab_size, loaded.max_model_len)
    assert (found.num_heads, found.hidden_size) == (loaded.shape.num_heads, 72)
    assert found.inner_size == INNER_SIZES[name]
    limits = StepLimits(64, 4, 256)
    assert make_outline_plan(found, "float32", 16, limits, ON_CPU).layout == (
        loaded.block_layout(16)
    )


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The config.json of a GPT-2 of 2 layers, 4 heads of 8, an MLP of 128, and 61 tokens."""
    make_model("GPT2Config").save_pretrained(tmp_path / "model")
    (tmp_path / "config").mkdir()
    shutil.copy(tmp_path / "model/config.json", tmp_path / "config")
    return tmp_path / "config"


def test_a_plan_adds_up_what_a_step_takes(folder: Path) -> None:
    found = outline(folder, max_model_len=40)
    limits = StepLimits(num_tokens=100, num_seqs=1, max_model_len=found.max_model_len)
    plan = make_outline_plan(found, "bfloat16", 16, limits, ON_CPU)
    assert plan.max_model_len == 40
    assert plan.layout == KvLayout.uniform(16, 2, 4, 8, "bfloat16")
    assert plan.weight_bytes == 2 * found.num_parameters
    # Of each token the stream of 32 numbers twice, then three times 128 and 32.
    assert plan.activation_bytes == 100 * (2 * 32 + 3 * 128 + 32) * 2


def test_more_than_one_device_is_refused(folder: Path) -> None:
    found = outline(folder, max_model_len=None)
    with pytest.raises(ConfigError, match="--tensor-parallel-size is 2, but must be 1 for GPT2LM"):
        make_outline_plan(found, "float32", 16, StepLimits(1, 1, 1), Hardware("cpu", GIB, 2))


def change_config(folder: Path, **changes: Any) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def test_what_cannot_be_served_is_not_planned(folder: Path) -> None:
    with pytest.raises(
        ConfigError, match="--max-model-len is 65, but the model's own context is 64"
    ):
        outline(folder, max_model_len=65)
    change_config(folder, architectures=["GPT2ForTokenClassification"])
    with pytest.raises(ConfigError, match="names the architecture 'GPT2ForTokenClassification'"):
        outline(folder, max_model_len=None)
    change_config(folder, architectures=["GPT2LMHeadModel"], n_head=5)
    with pytest.raises(ConfigError, match=r"cannot be read by transformers .* ValueError"):
        outline(folder, max_model_len=None)
