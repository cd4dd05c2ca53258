"""Every format is read to the numbers that its plain definition says, and computes what these do."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from pagemesh.errors import ConfigError
from pagemesh.kernels.linear import Dense, Weight
from pagemesh.kernels.linear.packed import ChannelInt8, Codebook, GroupInt, ScaledFp8
from pagemesh.kernels.linear.weight import RowStack
from pagemesh.models.checkpoint import Checkpoint, find_sources
from pagemesh.models.config_json import ConfigJson
from pagemesh.models.parameters import CheckpointParameters
from pagemesh.models.quantization.compressed_tensors import CompressedTensors
from pagemesh.models.quantization.methods import read_quantization
from pagemesh.models.quantization.parts import Packings
from pagemesh.models.registry import find_architecture
from tests.identity.checkpoints import RECIPES, make_checkpoint
from tests.support.quantised_checkpoints import FORMATS, quantise
from tests.support.quantising import BLOCK
from tests.unit.models.model_folder import write_model_of

SHAPES: dict[str, Any] = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
}


def read_weights(folder: Path, dtype: torch.dtype) -> dict[str, Weight]:
    """By the names that pagemesh has for them."""
    settings = ConfigJson.read(folder / "config.json")
    architecture = find_architecture(settings)
    assert architecture is not None
    spec = architecture.make_spec(settings)
    with Checkpoint.open(folder) as checkpoint:
        sources, may_ignore = find_sources(checkpoint, architecture, spec)
        packings = Packings(read_quantization(settings), sources, checkpoint.entries)
        packings.check(checkpoint, sources, may_ignore)
        parameters = CheckpointParameters(
            checkpoint, sources, spec.parameter_shapes(), dtype, packings=packings
        )
        names = [
            name
            for name, shape in spec.parameter_shapes().items()
            if name == "lm_head" or (name.endswith(".weight") and len(shape) > 1)
        ]
        return {name: parameters.weight(name) for name in names}


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_weights_are_what_the_format_says(tmp_path: Path, name: str, dtype: torch.dtype) -> None:
    source = write_model_of(tmp_path, **SHAPES)
    found = quantise(source, tmp_path / "quantised", tmp_path / "dense", FORMATS[name])
    assert len(found) == 7
    quantised = read_weights(tmp_path / "quantised", dtype)
    dense = read_weights(tmp_path / "dense", dtype)
    assert len(quantised) == 5
    for parameter, weight in quantised.items():
        assert isinstance(weight, Dense) == (parameter == "lm_head")
        assert torch.equal(weight.dense(), dense[parameter].dense()), parameter


KINDS = {
    "AWQ": GroupInt,
    "GPTQ, act-order": RowStack,
    "W8A16 as int8": GroupInt,
    "W8A8": ChannelInt8,
    "W8A8, static": ChannelInt8,
    "FP8 in blocks": ScaledFp8,
    "NF4, nested": Codebook,
}


@pytest.mark.parametrize("name", KINDS)
def test_weights_stay_packed(tmp_path: Path, name: str) -> None:
    source = write_model_of(tmp_path, **SHAPES)
    quantise(source, tmp_path / "quantised", tmp_path / "dense", FORMATS[name])
    weights = read_weights(tmp_path / "quantised", torch.bfloat16)
    assert isinstance(weights["layers.0.qkv.weight"], KINDS[name])


@pytest.mark.parametrize(
    ("name", "row_group", "input_scale"),
    [
        ("FP8 in blocks", BLOCK[1], None),
        ("FP8", 32, 0.5),
        ("FBGEMM FP8", 32, None),
        ("compressed FP8", 32, None),
        ("compressed FP8, static", 32, 0.5),
        ("compressed FP8 in blocks", None, None),
    ],
)
def test_rows_of_activations_are_what_the_format_says(
    tmp_path: Path, name: str, row_group: int | None, input_scale: float | None
) -> None:
    source = write_model_of(tmp_path, **SHAPES)
    quantise(source, tmp_path / "quantised", tmp_path / "dense", FORMATS[name])
    weight = read_weights(tmp_path / "quantised", torch.bfloat16)["layers.0.qkv.weight"]
    assert isinstance(weight, ScaledFp8)
    assert weight.row_group == row_group
    scales = None if weight.input_scales is None else set(weight.input_scales.flatten().tolist())
    assert scales == (None if input_scale is None else {input_scale})


@pytest.mark.parametrize(
    ("activations", "rows"),
    [
        ({"strategy": "token", "dynamic": True}, "rows"),
        ({"strategy": "tensor", "dynamic": True}, "rows"),
        ({"strategy": "group", "group_size": 128, "dynamic": True}, 128),
        ({"strategy": "tensor", "dynamic": False}, "static"),
        ({"dynamic": False}, "static"),
        ({"strategy": None}, "static"),
        (None, "kept"),
    ],
)
def test_compressed_tensors_say_what_becomes_of_rows(
    activations: dict[str, Any] | None, rows: str | int
) -> None:
    weights = {"num_bits": 8, "type": "float", "strategy": "channel"}
    if activations is not None:
        activations = {"num_bits": 8, "type": "float", **activations}
    group = {"targets": ["Linear"], "weights": weights, "input_activations": activations}
    config = {"format": "float-quantized", "config_groups": {"group_0": group}}
    (scheme,) = CompressedTensors.read(ConfigJson(config, "config.json")).schemes
    assert scheme.fp8_rows == rows


@pytest.mark.parametrize("name", ["FP8", "compressed FP8, static"])
@pytest.mark.parametrize("scale", [0.0, torch.inf, torch.nan])
def test_scales_of_activations_must_be_positive(tmp_path: Path, name: str, scale: float) -> None:
    source = write_model_of(tmp_path, **SHAPES)
    form = FORMATS[name]
    quantise(source, tmp_path / "quantised", tmp_path / "dense", form)
    path = tmp_path / "quantised/model.safetensors"
    tensors = load_file(path)
    given = "model.layers.0.self_attn.q_proj.input_scale"
    save_file(tensors | {given: torch.tensor(scale)}, path)
    with pytest.raises(ConfigError, match=f"{given} with {scale:g}"):
        read_weights(tmp_path / "quantised", torch.bfloat16)


@pytest.mark.product(sample=4)
@pytest.mark.parametrize(
    "name", ["AWQ", "GPTQ, act-order", "W8A16 as int8", "W8A8, static", "FP8", "NF4"]
)
@pytest.mark.parametrize(
    "recipe",
    [
        "Llama MHA tied",
        "Gemma 3 with images",
        "Phi-3",
        "Falcon 40B",
        "Falcon RW",
        "Mixtral",
        "Qwen 2 MoE",
        "Qwen 3 MoE",
    ],
)
def test_every_architecture_has_quantised_weights(tmp_path: Path, recipe: str, name: str) -> None:
    """Rows are fused, put in another order, or of experts that are stacked."""
    settings = dict(RECIPES[recipe].settings)
    if "shared_expert_intermediate_size" in settings:
        settings["shared_expert_intermediate_size"] = 56
    make_checkpoint(tmp_path, replace(RECIPES[recipe], settings=settings))
    found = quantise(tmp_path, tmp_path / "quantised", tmp_path / "dense", FORMATS[name])
    assert len(found) > 10
    quantised = read_weights(tmp_path / "quantised", torch.bfloat16)
    for parameter, weight in read_weights(tmp_path / "dense", torch.bfloat16).items():
        assert torch.equal(quantised[parameter].dense(), weight.dense()), parameter
