"""A model in a GGUF file is the model of the folder that it was made of: the same spec, the same weights."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest
import torch

from pagemesh.models.checkpoint import Checkpoint, find_sources
from pagemesh.models.config_json import ConfigJson
from pagemesh.models.parameters import CheckpointParameters
from pagemesh.models.registry import find_architecture
from pagemesh.models.rope import fix_rope, frequencies
from pagemesh.models.spec import DecoderSpec, RopeSpec
from tests.identity.checkpoints import RECIPES, make_checkpoint
from tests.support.gguf_files import write_gguf

NAMES = (
    "Llama GQA",
    "Llama MHA tied",
    "Llama MQA",
    "Llama llama3 rope",
    "Llama linear rope and biases",
    "Llama yarn",
    "Qwen 2",
    "Qwen 3",
    "Gemma 2",
    "Gemma 3",
    "Phi-3",
    "Phi-3 longrope, short",
    "Phi-3 longrope, long",
    "Mixtral",
    "Qwen 2 MoE",
    "Qwen 3 MoE",
    "GPT-OSS",
)
# What llama.cpp has no key for, and takes to be as in the models that there are.
CHANGES: dict[str, dict[str, Any]] = {
    "Gemma 2": {"query_pre_attn_scalar": 20},
    "Gemma 3": {"query_pre_attn_scalar": 20},
    "Qwen 2 MoE": {"decoder_sparse_step": 1},
    "Qwen 3 MoE": {"mlp_only_layers": []},
    "GPT-OSS": {"swiglu_limit": 7.0},
}


def read(folder: Path) -> tuple[DecoderSpec, dict[str, torch.Tensor]]:
    """Spec and parameters of a model in float32."""
    settings = ConfigJson.read(folder / "config.json")
    architecture = find_architecture(settings)
    assert architecture is not None
    spec = architecture.make_spec(settings)
    with Checkpoint.open(folder, torch.float32) as checkpoint:
        sources, may_ignore = find_sources(checkpoint, architecture, spec)
        checkpoint.check({source.tensor: source.shape for source in sources}, may_ignore)
        shapes = spec.parameter_shapes()
        parameters = CheckpointParameters(checkpoint, sources, shapes, torch.float32)
        return spec, {name: parameters.read(name) for name in shapes}


def about(spec: DecoderSpec) -> DecoderSpec:
    """Without what float32 rounds, and the RoPE of layers."""
    rounded = dataclasses.replace(spec.norm, eps=float(torch.tensor(spec.norm.eps)))
    layers = tuple(dataclasses.replace(layer, rope=None) for layer in spec.layers)
    return dataclasses.replace(spec, norm=rounded, layers=layers)


def assert_same_rope(one: RopeSpec | None, other: RopeSpec | None, max_model_len: int) -> None:
    assert one is not None and other is not None
    one, other = fix_rope(one, max_model_len), fix_rope(other, max_model_len)
    assert one.rotary_dim == other.rotary_dim
    assert one.attention_factor == pytest.approx(other.attention_factor, rel=1e-6)
    assert torch.allclose(frequencies(one), frequencies(other), rtol=1e-6, atol=0)


@pytest.mark.parametrize("name", NAMES)
def test_spec_and_weights_are_those_of_the_folder(tmp_path: Path, name: str) -> None:
    recipe = RECIPES[name]
    recipe = dataclasses.replace(recipe, settings=recipe.settings | CHANGES.get(name, {}))
    make_checkpoint(tmp_path, recipe)
    expected, weights = read(tmp_path)
    spec, found = read(write_gguf(tmp_path, tmp_path / "model.gguf"))
    assert about(spec) == about(expected)
    assert found.keys() == weights.keys()
    for parameter, tensor in weights.items():
        assert torch.equal(found[parameter], tensor), parameter
    for layer, expected_layer in zip(spec.layers, expected.layers, strict=True):
        assert_same_rope(layer.rope, expected_layer.rope, recipe.max_model_len or 256)
