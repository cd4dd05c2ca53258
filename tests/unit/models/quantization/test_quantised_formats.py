"""Every format is read to the numbers that its plain definition says, and computes what these do."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from pagemesh.config import ModelConfig
from pagemesh.kernels.linear import Dense, Weight
from pagemesh.kernels.linear.packed import Codebook, GroupInt, ScaledFp8
from pagemesh.kernels.linear.weight import RowStack
from pagemesh.llm import LLM, SamplingParams
from pagemesh.models.checkpoint import Checkpoint
from pagemesh.models.config_json import ConfigJson
from pagemesh.models.loader import load_model
from pagemesh.models.parameters import CheckpointParameters
from pagemesh.models.quantization.methods import read_quantization
from pagemesh.models.quantization.parts import Packings
from pagemesh.models.registry import find_architecture
from tests.identity.byte_tokenizer import write_tokenizer
from tests.identity.checkpoints import RECIPES, make_checkpoint
from tests.support.quantised_checkpoints import FORMATS, MXFP4, quantise
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
        sources = architecture.named_sources(spec, checkpoint.entries.keys())
        packings = Packings(read_quantization(settings), sources, checkpoint.entries)
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


SCHEMES = {
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


def test_an_output_head_may_be_quantised(tmp_path: Path) -> None:
    source = write_model_of(tmp_path, vocab_size=16, **SHAPES)
    folders = tmp_path / "quantised", tmp_path / "dense"
    quantise(source, *folders, FORMATS["GPTQ"], {"lm_head": gptq})
    quantised, dense = (read_weights(folder, torch.bfloat16)["lm_head"] for folder in folders)
    assert isinstance(quantised, GroupInt)
    assert torch.equal(quantised.dense(), dense.dense())


KINDS = {
    "AWQ": GroupInt,
    "GPTQ, act-order": RowStack,
    "W8A16 as int8": GroupInt,
    "FP8 in blocks": ScaledFp8,
    "NF4, nested": Codebook,
}


@pytest.mark.parametrize("name", KINDS)
def test_weights_stay_packed(tmp_path: Path, name: str) -> None:
    source = write_model_of(tmp_path, **SHAPES)
    quantise(source, tmp_path / "quantised", tmp_path / "dense", FORMATS[name])
    weights = read_weights(tmp_path / "quantised", torch.bfloat16)
    assert isinstance(weights["layers.0.qkv.weight"], KINDS[name])


@pytest.mark.product(sample=4)
@pytest.mark.parametrize("name", ["AWQ", "GPTQ, act-order", "W8A16 as int8", "FP8", "NF4"])
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


def answers(source: Path, folder: Path, form: Format) -> list[list[tuple[int, ...]]]:
    """Of a quantised checkpoint, and of the floats that it stands for."""
    quantise(source, folder / "quantised", folder / "dense", form)
    found = []
    for each in (folder / "quantised", folder / "dense"):
        write_tokenizer(each)
        with LLM(each, dtype="bfloat16", kv_cache_memory=0.01, threads=1) as llm:
            outputs = llm.generate(
                [{"prompt_token_ids": [5, 6, 7, 8]}, {"prompt_token_ids": [90]}],
                SamplingParams(temperature=0, max_tokens=24, ignore_eos=True),
                use_tqdm=False,
            )
        found.append([output.outputs[0].token_ids for output in outputs])
    return found


@pytest.mark.product(sample=5)
@pytest.mark.parametrize("name", FORMATS)
def test_tokens_are_those_of_the_floats(tmp_path: Path, name: str) -> None:
    sizes = SHAPES | {"vocab_size": 131, "max_position_embeddings": 64, "eos_token_id": None}
    quantised, dense = answers(write_model_of(tmp_path, **sizes), tmp_path, FORMATS[name])
    assert quantised == dense
    assert len({*dense[0], *dense[1]}) > 3


def test_gpt_oss_runs_from_its_experts_of_4_bits(tmp_path: Path) -> None:
    recipe = RECIPES["GPT-OSS"]
    settings = recipe.settings | {"hidden_size": 64, "intermediate_size": 96}
    make_checkpoint(tmp_path, replace(recipe, settings=settings))
    quantised, dense = answers(tmp_path, tmp_path, MXFP4)
    assert quantised == dense
    assert len({*dense[0], *dense[1]}) > 3
    weights = read_weights(tmp_path / "quantised", torch.bfloat16)
    ups = weights["layers.0.experts.up.weight"]
    assert isinstance(ups, Codebook)
    assert (ups.shape, ups.num_bytes) == ((5, 192, 64), 5 * 192 * (32 + 2))
