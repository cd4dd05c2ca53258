"""What each way of quantising while loading makes of which parameter."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from pagemesh.models.config_json import ConfigJson
from pagemesh.models.quantization.ways import QuantizationWay, Rounding, WayName
from pagemesh.models.registry import find_architecture
from pagemesh.models.spec import DecoderSpec
from tests.identity.checkpoints import RECIPES, make_checkpoint


def spec_of(folder: Path, recipe: str, **settings: int) -> DecoderSpec:
    make_checkpoint(folder, replace(RECIPES[recipe], settings=RECIPES[recipe].settings | settings))
    config = ConfigJson.read(folder / "config.json")
    architecture = find_architecture(config)
    assert architecture is not None
    return architecture.make_spec(config)


@pytest.mark.parametrize(
    ("way", "num_inputs", "expected"),
    [
        ("fp8", 100, Rounding("fp8", 32)),
        ("fp8", 4096, Rounding("fp8", 32)),
        ("int8", 4096, Rounding("int8", 128)),
        ("int8", 576, Rounding("int8", 64)),
        ("int8", 96, Rounding("int8", 32)),
        ("int8", 48, Rounding("int8", 16)),
        ("int8", 100, Rounding("int8", 100)),
        ("int4", 4096, Rounding("int4", 32)),
        ("int4", 48, None),
    ],
)
def test_groups_divide_rows(way: WayName, num_inputs: int, expected: Rounding | None) -> None:
    for name, shape in (("down", (7, num_inputs)), ("experts.up", (3, 7, num_inputs))):
        assert QuantizationWay(way).rounding(f"layers.0.{name}.weight", shape) == expected


@pytest.mark.parametrize("way", ["fp8", "int8", "int4"])
@pytest.mark.parametrize(
    ("parameter", "shape"),
    [
        ("embed", (100, 64)),
        ("positions", (100, 64)),
        ("token_types", (2, 64)),
        ("final_norm.weight", (64,)),
        ("layers.1.o.bias", (64,)),
        ("layers.1.router.weight", (8, 64)),
        ("layers.1.shared_gate.weight", (1, 64)),
    ],
)
def test_what_is_looked_up_or_chooses_stays_as_it_is(
    way: WayName, parameter: str, shape: tuple[int, ...]
) -> None:
    assert QuantizationWay(way).rounding(parameter, shape) is None


def test_a_head_is_whole_numbers_of_8_bits() -> None:
    heads = [
        QuantizationWay(way).rounding("lm_head", (100, 256)) for way in ("fp8", "int8", "int4")
    ]
    assert heads == [Rounding("int8", 128)] * 3


def test_what_is_left_out_is_told_once_for_all_layers(tmp_path: Path) -> None:
    spec = spec_of(tmp_path, "Qwen 2 MoE", hidden_size=64, num_hidden_layers=3)
    told = QuantizationWay("int8").left_out(spec)
    assert told == [
        "embed (looked up)",
        "layers.*.router.weight (chooses experts)",
        "layers.*.shared_gate.weight (chooses experts)",
    ]
    headless = replace(spec, tie_word_embeddings=True, has_head=False)
    assert QuantizationWay("int8").left_out(headless)[0] == "embed (looked up)"


def test_biases_of_experts_are_no_matrices(tmp_path: Path) -> None:
    spec = spec_of(tmp_path, "GPT-OSS", hidden_size=96, intermediate_size=96)
    assert len(spec.parameter_shapes()["layers.0.experts.down.bias"]) == 2
    assert QuantizationWay("fp8").left_out(spec) == [
        "embed (looked up)",
        "layers.*.router.weight (chooses experts)",
    ]


@pytest.mark.parametrize("way", ["fp8", "int8", "int4"])
def test_a_table_that_is_the_head_as_well_is_quantised_as_one(tmp_path: Path, way: WayName) -> None:
    spec = replace(spec_of(tmp_path, "Qwen 3", hidden_size=64), tie_word_embeddings=True)
    chosen = QuantizationWay(way)
    assert chosen.roundings(spec)["embed"] == chosen.rounding("lm_head", (1, 64))
    assert not any(told.startswith("embed") for told in chosen.left_out(spec))


def test_groups_that_do_not_fit_are_told(tmp_path: Path) -> None:
    spec = spec_of(tmp_path, "Qwen 3", hidden_size=64, intermediate_size=80)
    assert QuantizationWay("int4").left_out(spec) == [
        "embed (looked up)",
        "layers.*.o.weight (120 inputs are no groups of 32)",
        "layers.*.down.weight (80 inputs are no groups of 32)",
    ]


def test_each_way_is_a_fact_of_its_own() -> None:
    facts = [QuantizationWay(way).facts for way in ("fp8", "int8", "int4")]
    assert facts == [{"quantized_while_loading": [way, 3]} for way in ("fp8", "int8", "int4")]
