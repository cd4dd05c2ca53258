"""Models of transformers with quantised weights: those of the floats that the codes stand for, multiplied by codes."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from structlog.testing import capture_logs

from pagemesh.kernels.linear.interface import PlainLinear
from pagemesh.kernels.linear.weight import Quantised
from pagemesh.models.quantization.rounding import round_weight
from pagemesh.models.quantization.ways import QuantizationWay
from pagemesh.models.transformers_backend import model as causal_model
from pagemesh.models.transformers_backend import quantised as reading
from pagemesh.models.transformers_backend.read import read_model
from tests.support.quantised_checkpoints import FORMATS, MXFP4, WEIGHTS_ALONE, quantise, write
from tests.support.quantising import gptq, packed_integers
from tests.unit.models.transformers_backend.answers import (
    MIXTURES,
    WIDE,
    answer,
    load,
    quantised_llama,
    save,
)

pytestmark = pytest.mark.costly

GROUPS_OF_32 = replace(
    FORMATS["W4A16"],
    config=json.loads(
        json.dumps(FORMATS["W4A16"].config).replace('"group_size": 8', '"group_size": 32')
    ),
    quantise=partial(packed_integers, size=32),
)
"""Stay packed on CPUs."""


@pytest.mark.product(sample=6)
@pytest.mark.parametrize("name", WEIGHTS_ALONE)
def test_tokens_are_those_of_the_floats(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    quantised = answer(quantised_llama(tmp_path, name), monkeypatch)
    dense = answer(tmp_path / "dense", monkeypatch)
    assert quantised.tokens == dense.tokens
    assert len({*dense.tokens[0], *dense.tokens[1]}) > 3
    assert quantised.multiplied.count("Dense") == 1
    assert len(quantised.multiplied) == 15
    assert quantised.log["left_dense"] == []
    assert dense.multiplied == ["Dense"] * 15
    assert dense.log == {}


def test_groups_of_32_take_the_bytes_of_their_codes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save(tmp_path, "LlamaConfig", **WIDE)
    quantise(tmp_path, tmp_path / "quantised", tmp_path / "dense", GROUPS_OF_32)
    quantised = answer(tmp_path / "quantised", monkeypatch)
    assert quantised.tokens == answer(tmp_path / "dense", monkeypatch).tokens
    assert quantised.multiplied.count("GroupInt") == 14
    # Of both layers: queries, keys, values, outputs, gates, ups and downs; a scale of a half to 32.
    numbers = 2 * 64 * (64 + 2 * 32 + 64 + 3 * 96)
    assert quantised.log == {
        "event": "weights are quantised",
        "log_level": "info",
        "quantization": "compressed-tensors",
        "packed_bytes": numbers // 2 + numbers // 32 * 2,
        "left_dense": [],
    }


@pytest.mark.parametrize("name", ["W8A8", "compressed FP8", "FP8 in blocks"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_rows_of_activations_may_become_codes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, dtype: str
) -> None:
    found = answer(quantised_llama(tmp_path, name), monkeypatch, dtype=dtype)
    kind = "ChannelInt8" if name == "W8A8" else "ScaledFp8"
    assert found.multiplied.count(kind) == 14


@pytest.mark.parametrize("name", ["AWQ", "FP8 in blocks", "GPTQ, act-order"])
@pytest.mark.parametrize(("model", "num_mixtures"), [("MixtralConfig", 2), ("DeepseekV3Config", 1)])
def test_experts_are_multiplied_by_their_codes(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    model: str,
    num_mixtures: int,
) -> None:
    save(tmp_path, model, **MIXTURES[model])
    found = quantise(tmp_path, tmp_path / "quantised", tmp_path / "dense", FORMATS[name])
    assert any(".experts.3." in tensor for tensor in found)
    quantised = answer(tmp_path / "quantised", monkeypatch)
    dense = answer(tmp_path / "dense", monkeypatch)
    assert quantised.tokens == dense.tokens
    # Gates have their inputs in other groups than ups.
    orders = name == "GPTQ, act-order"
    left = ["gate_proj", "up_proj"] if model == "DeepseekV3Config" else ["w1", "w3"]
    told = [each.split(".")[-2:] for each in sorted(quantised.log["left_dense"])]
    assert told == [[each, "weight (of several kinds)"] for each in left if orders]
    others = [tensor for tensor in found if ".experts." not in tensor]
    assert len(quantised.multiplied) - quantised.multiplied.count("Dense") == len(others)
    kind = "ScaledFp8" if name == "FP8 in blocks" else "GroupInt"
    assert quantised.experts == ["Dense" if orders else kind, kind] * num_mixtures
    assert dense.experts == ["Dense"] * 2 * num_mixtures


def test_experts_of_mxfp4(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Stacked in the checkpoint, gates among ups, inputs before outputs in the model."""
    save(tmp_path, "GptOssConfig", **MIXTURES["GptOssConfig"])
    assert quantise(tmp_path, tmp_path / "quantised", tmp_path / "dense", MXFP4)
    quantised = answer(tmp_path / "quantised", monkeypatch)
    assert quantised.tokens == answer(tmp_path / "dense", monkeypatch).tokens
    assert quantised.log["left_dense"] == []
    assert quantised.experts == ["Codebook"] * 4


@pytest.mark.parametrize(
    ("changed", "kinds"),
    [("gate_up_proj", ["Dense", "GroupInt"]), ("down_proj", ["GroupInt", "Dense"])],
)
def test_experts_of_which_one_is_no_longer_what_its_codes_stand_for_are_dense(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, changed: str, kinds: list[str]
) -> None:
    save(tmp_path, "MixtralConfig", **MIXTURES["MixtralConfig"])
    quantise(tmp_path, tmp_path / "quantised", tmp_path / "dense", FORMATS["AWQ"])

    def change(*arguments: Any) -> Any:
        model = read_model(*arguments)
        with torch.no_grad():
            model.get_parameter(f"model.layers.0.mlp.experts.{changed}")[3, 5, 31] += 1
        return model

    monkeypatch.setattr(reading, "read_model", change)
    found = answer(tmp_path / "quantised", monkeypatch)
    assert found.experts == [*kinds, "GroupInt", "GroupInt"]
    left = ["w2"] if changed == "down_proj" else ["w1", "w3"]
    assert sorted(found.log["left_dense"]) == [
        f"model.layers.*.block_sparse_moe.experts.*.{name}.weight (stacked by transformers)"
        for name in left
    ]


def test_matrices_with_inputs_before_outputs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """GPT-2's, which GPTQ writes as those of all others."""
    save(tmp_path, "GPT2Config", vocab_size=131, hidden_size=64)
    torch.manual_seed(3)
    tensors = load_file(tmp_path / "model.safetensors")
    names = [name for name in tensors if ".h." in name and tensors[name].dim() == 2]
    assert len(names) == 8
    dense, packed = dict(tensors), dict(tensors)
    for name in names:
        found = gptq(*tensors[name].shape[::-1])
        dense[name] = found.dense.t().float().contiguous()
        del packed[name]
        packed |= {
            f"{name.removesuffix('weight')}{end}": each for end, each in found.tensors.items()
        }
    config = json.loads((tmp_path / "config.json").read_text())
    form = {"quantization_config": FORMATS["GPTQ"].config}
    write(tmp_path / "quantised", packed, config | form)
    write(tmp_path / "dense", dense, config)
    quantised = answer(tmp_path / "quantised", monkeypatch)
    assert quantised.tokens == answer(tmp_path / "dense", monkeypatch).tokens
    assert quantised.multiplied.count("GroupInt") == 8
    way = answer(tmp_path / "dense", monkeypatch, quantization="int4")
    assert way.multiplied.count("GroupInt") == 9
    assert way.tokens != quantised.tokens


def test_a_quantised_checkpoint_is_named(tmp_path: Path) -> None:
    folder = quantised_llama(tmp_path, "AWQ")
    model = load(folder)
    assert model.quantization == "awq"
    assert load(folder, quantization="awq_marlin").fingerprint == model.fingerprint
    assert load(tmp_path / "dense").fingerprint != model.fingerprint


@pytest.mark.parametrize("way", [None, "int8"])
def test_a_model_that_our_products_do_not_suit_has_floats(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, way: str | None
) -> None:
    quantised_llama(tmp_path)
    folder = tmp_path / ("dense" if way else "quantised")
    replace_matmuls = causal_model.replace_matmuls

    def spoil(model: torch.nn.Module, packed: Mapping[str, Quantised]) -> None:
        replace_matmuls(model, packed)
        head: Any = model.get_submodule("lm_head")
        head._multiply = PlainLinear(torch.zeros(131, 64), None)

    monkeypatch.setattr(causal_model, "replace_matmuls", spoil)
    with capture_logs() as logs:
        loaded = load(folder, quantization=way)
    assert [entry["event"] for entry in logs] == ["torch's matmuls", "weights are quantised"]
    assert (logs[1]["packed_bytes"], logs[1]["left_dense"]) == (0, ["all (torch's matmuls)"])
    assert loaded.quantization == (way or "compressed-tensors")
    name = "model.layers.0.mlp.up_proj.weight"
    wanted = load_file(tmp_path / "dense/model.safetensors")[name].to(torch.bfloat16)
    if way:
        to = QuantizationWay("int8").rounding(name, tuple(wanted.shape))
        assert to is not None
        wanted = round_weight(wanted, to, torch.bfloat16).dense()
    assert torch.equal(loaded.decoder._model.get_parameter(name), wanted)


def test_a_weight_that_is_no_longer_what_its_codes_stand_for_is_dense(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = quantised_llama(tmp_path)

    def change(*arguments: Any) -> Any:
        model = read_model(*arguments)
        with torch.no_grad():
            model.get_parameter("model.layers.1.mlp.up_proj.weight")[5, 63] += 1
        return model

    monkeypatch.setattr(reading, "read_model", change)
    found = answer(folder, monkeypatch)
    assert found.multiplied.count("Dense") == 2
    assert len(found.log["left_dense"]) == 1
