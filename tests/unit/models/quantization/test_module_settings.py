"""Modules that are quantised in another way than the rest, or not at all."""

from __future__ import annotations

import copy
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from pagemesh.config import ModelConfig
from pagemesh.kernels.linear import Dense
from pagemesh.kernels.linear.packed import ChannelInt8, GroupInt
from pagemesh.kernels.linear.weight import RowStack
from pagemesh.models.loader import load_model
from tests.support.quantised_checkpoints import FORMATS, quantise
from tests.support.quantising import (
    Format,
    Maker,
    Quantised,
    fp8,
    gptq,
    integers,
    packed_integers,
)
from tests.unit.models.model_folder import write_model_of
from tests.unit.models.quantization.test_quantised_formats import SHAPES, read_weights

SCHEMES: dict[str, Any] = {
    "quant_method": "compressed-tensors",
    "format": "mixed-precision",
    "ignore": ["lm_head", "re:.*o_proj$"],
    "config_groups": {
        "group_0": {
            "targets": ["Linear"],
            "format": "int-quantized",
            "weights": {"num_bits": 8, "type": "int", "strategy": "channel"},
        },
        "group_1": {
            "targets": ["re:.*self_attn.*", "model.layers.0.mlp.down_proj"],
            "format": "pack-quantized",
            "weights": {"num_bits": 4, "type": "int", "strategy": "group", "group_size": 8},
        },
        "group_2": {
            "targets": ["model.layers.0.self_attn.v_proj"],
            "format": "float-quantized",
            "weights": {"num_bits": 8, "type": "float", "strategy": "tensor"},
        },
    },
}
DYNAMIC = {
    **FORMATS["GPTQ"].config,
    "dynamic": {
        "-:.*o_proj": {},
        "+:.*v_proj": {"bits": 8, "group_size": -1},
        ".*down_proj": {"group_size": 16, "sym": True},
    },
}


def floats(_: int, num_inputs: int) -> Quantised:
    """A matrix that is not quantised, though others of its kind are."""
    weight = torch.randn(32, num_inputs)
    return Quantised({"weight": weight}, weight.double())


@pytest.mark.parametrize(
    ("config", "default", "others"),
    [
        (
            SCHEMES,
            integers,
            {
                "v_proj": partial(fp8, scale="weight_scale", shape=lambda *_: (1,)),
                "o_proj": floats,
                "self_attn": packed_integers,
                "down_proj": packed_integers,
            },
        ),
        (
            DYNAMIC,
            gptq,
            {
                "v_proj": partial(gptq, bits=8, size=None),
                "o_proj": floats,
                "down_proj": partial(gptq, size=16, symmetric=True),
            },
        ),
    ],
    ids=["compressed-tensors", "GPTQ"],
)
def test_modules_may_have_settings_of_their_own(
    tmp_path: Path,
    config: dict[str, Any],
    default: Maker,
    others: dict[str, Maker],
) -> None:
    source = write_model_of(tmp_path, **SHAPES)
    quantise(source, tmp_path / "quantised", tmp_path / "dense", Format(config, default), others)
    quantised = read_weights(tmp_path / "quantised", torch.float32)
    assert {name: type(weight) for name, weight in quantised.items()} == {
        "lm_head": Dense,
        "layers.0.qkv.weight": RowStack,
        "layers.0.o.weight": Dense,
        "layers.0.up.weight": GroupInt,
        "layers.0.down.weight": GroupInt,
    }
    for parameter, weight in read_weights(tmp_path / "dense", torch.float32).items():
        assert torch.equal(quantised[parameter].dense(), weight.dense()), parameter
    loaded = load_model(ModelConfig(str(tmp_path / "quantised")))
    assert loaded.fingerprint != load_model(ModelConfig(str(tmp_path / "dense"))).fingerprint


def test_some_modules_may_take_rows_of_whole_numbers(tmp_path: Path) -> None:
    """Their tensors alone do not tell: the same ones without the activations are another model."""
    groups = copy.deepcopy(SCHEMES["config_groups"])
    rows = {"num_bits": 8, "type": "int", "dynamic": True, "strategy": "token"}
    groups["group_0"]["input_activations"] = rows
    others: dict[str, Maker] = {
        "o_proj": floats,
        "self_attn": packed_integers,
        "down_proj": packed_integers,
    }
    del groups["group_2"]
    source = write_model_of(tmp_path, **SHAPES)
    fingerprints = set()
    for config_groups, kind in ((groups, ChannelInt8), (_of_weights_alone(groups), GroupInt)):
        form = Format(SCHEMES | {"config_groups": config_groups}, integers)
        quantise(source, tmp_path / "quantised", tmp_path / "dense", form, others)
        weights = read_weights(tmp_path / "quantised", torch.float32)
        assert {name: type(weight) for name, weight in weights.items()} == {
            "lm_head": Dense,
            "layers.0.qkv.weight": GroupInt,
            "layers.0.o.weight": Dense,
            "layers.0.up.weight": kind,
            "layers.0.down.weight": GroupInt,
        }
        fingerprints.add(load_model(ModelConfig(str(tmp_path / "quantised"))).fingerprint)
    assert len(fingerprints) == 2


def _of_weights_alone(groups: dict[str, Any]) -> dict[str, Any]:
    return {name: group | {"input_activations": None} for name, group in groups.items()}


def test_an_output_head_may_be_quantised(tmp_path: Path) -> None:
    source = write_model_of(tmp_path, vocab_size=16, **SHAPES)
    folders = tmp_path / "quantised", tmp_path / "dense"
    quantise(source, *folders, FORMATS["GPTQ"], {"lm_head": gptq})
    quantised, dense = (read_weights(folder, torch.bfloat16)["lm_head"] for folder in folders)
    assert isinstance(quantised, GroupInt)
    assert torch.equal(quantised.dense(), dense.dense())
