"""A dense checkpoint that is quantised while it is loaded: tokens, name, what is told, and memory."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import structlog
import torch
from safetensors.torch import load_file, save_file

from pagemesh.config import ModelConfig
from pagemesh.errors import ConfigError
from pagemesh.kernels.linear.packed import Packed
from pagemesh.llm import LLM, SamplingParams
from pagemesh.models.checkpoint import Checkpoint, find_sources
from pagemesh.models.config_json import ConfigJson
from pagemesh.models.loader import load_model
from pagemesh.models.parameters import CheckpointParameters
from pagemesh.models.quantization import ways
from pagemesh.models.quantization.parts import Packings
from pagemesh.models.quantization.rounding import round_weight
from pagemesh.models.quantization.ways import WAY_NAMES, QuantizationWay, WayName
from pagemesh.models.registry import find_architecture
from tests.identity.byte_tokenizer import write_tokenizer
from tests.identity.checkpoints import RECIPES, make_checkpoint
from tests.unit.models.model_folder import write_model_of

WIDE: dict[str, Any] = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
}
RECIPE_NAMES = ("Llama GQA", "Llama MHA tied", "Falcon 40B", "Mixtral", "Qwen 2 MoE", "GPT-OSS")


def make(folder: Path, recipe: str) -> Path:
    """Of a recipe, with rows that are groups."""
    settings = RECIPES[recipe].settings | WIDE
    if "head_dim" in settings:
        settings |= {"head_dim": 16}
    if "num_kv_heads" in settings:
        settings |= {"num_kv_heads": 2}
    if "moe_intermediate_size" in settings:
        settings |= {"moe_intermediate_size": 32, "shared_expert_intermediate_size": 64}
    make_checkpoint(folder, replace(RECIPES[recipe], settings=settings))
    write_tokenizer(folder)
    return folder


def write_twin(folder: Path, twin: Path, way: WayName) -> int:
    """The floats that the weights become; how many tensors there are of these."""
    shutil.copytree(folder, twin)
    settings = ConfigJson.read(folder / "config.json")
    architecture = find_architecture(settings)
    assert architecture is not None
    spec = architecture.make_spec(settings)
    num_rounded = 0
    with Checkpoint.open(folder) as checkpoint:
        sources, _ = find_sources(checkpoint, architecture, spec)
        tensors = {name: checkpoint.read(name).clone() for name in checkpoint.entries}
    roundings = QuantizationWay(way).roundings(spec)
    for source in sources:
        to = roundings.get(source.parameter)
        if to is None:
            continue
        weight = tensors[source.tensor]
        # Experts of GPT-OSS have inputs before outputs.
        is_turned = weight.dim() == 3
        rounded = round_weight(weight.mT if is_turned else weight, to, torch.bfloat16).dense()
        tensors[source.tensor] = (rounded.mT if is_turned else rounded).contiguous()
        num_rounded += 1
    for path in twin.glob("*.safetensors*"):
        path.unlink()
    save_file(tensors, twin / "model.safetensors")
    return num_rounded


def answers(folder: Path, **settings: Any) -> list[tuple[int, ...]]:
    with LLM(folder, dtype="bfloat16", kv_cache_memory=0.01, threads=1, **settings) as llm:
        outputs = llm.generate(
            [{"prompt_token_ids": [5, 6, 7, 8]}, {"prompt_token_ids": [90]}],
            SamplingParams(temperature=0, max_tokens=24, ignore_eos=True),
            use_tqdm=False,
        )
    return [tuple(output.outputs[0].token_ids) for output in outputs]


@pytest.mark.product(sample=4)
@pytest.mark.parametrize("recipe", RECIPE_NAMES)
@pytest.mark.parametrize("way", WAY_NAMES)
def test_tokens_are_those_of_the_floats(tmp_path: Path, recipe: str, way: WayName) -> None:
    folder = make(tmp_path / "dense", recipe)
    assert write_twin(folder, tmp_path / "twin", way) > 4
    quantised = answers(folder, quantization=way)
    assert quantised == answers(tmp_path / "twin")
    assert len({*quantised[0], *quantised[1]}) > 3


@pytest.mark.parametrize("way", WAY_NAMES)
def test_whatever_is_stacked_stays_packed(tmp_path: Path, way: WayName) -> None:
    folder = make(tmp_path, "Mixtral")
    settings = ConfigJson.read(folder / "config.json")
    architecture = find_architecture(settings)
    assert architecture is not None
    spec = architecture.make_spec(settings)
    shapes = spec.parameter_shapes()
    with Checkpoint.open(folder) as checkpoint:
        sources, _ = find_sources(checkpoint, architecture, spec)
        packings = Packings.while_loading(QuantizationWay(way), sources, spec)
        parameters = CheckpointParameters(
            checkpoint, sources, shapes, torch.bfloat16, packings=packings
        )
        for name in QuantizationWay(way).roundings(spec):
            weight = parameters.weight(name)
            assert isinstance(weight, Packed), name
            assert weight.shape == shapes[name]
    assert packings.num_bytes > 0


def test_each_way_and_each_rule_is_another_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = write_model_of(tmp_path, **WIDE)

    def name_of(way: str | None) -> str:
        return load_model(ModelConfig(str(folder), quantization=way)).fingerprint

    names = [name_of(way) for way in (None, *WAY_NAMES)]
    assert name_of("int4") == names[-1]
    monkeypatch.setattr(ways, "RULE", ways.RULE + 1)
    assert name_of(None) == names[0]
    names += [name_of(way) for way in WAY_NAMES]
    assert len(set(names)) == 7


def test_what_was_quantised_and_what_was_not_is_told_once(tmp_path: Path) -> None:
    folder = write_model_of(tmp_path, **WIDE | {"intermediate_size": 80})
    with structlog.testing.capture_logs() as logs:
        load_model(ModelConfig(str(folder), quantization="int4"))
    (told,) = [entry for entry in logs if entry["event"] == "weights are quantised"]
    # Groups of 32 in 4 bits, with two numbers of 2 bytes; the head in 8, one number to 64.
    in_4_bits = (64 + 2 * 32 + 64 + 2 * 80) * 64
    in_8_bits = 11 * 64
    assert told == {
        "event": "weights are quantised",
        "log_level": "info",
        "quantization": "int4",
        "packed_bytes": in_4_bits // 2 + in_4_bits // 32 * 4 + in_8_bits + 11 * 2,
        "left_dense": [
            "embed (looked up)",
            "layers.*.down.weight (80 inputs are no groups of 32)",
        ],
    }
    with structlog.testing.capture_logs() as logs:
        load_model(ModelConfig(str(folder)))
    assert [entry for entry in logs if entry["event"] == "weights are quantised"] == []


@pytest.mark.parametrize("way", WAY_NAMES)
@pytest.mark.parametrize("value", [torch.nan, torch.inf])
def test_values_that_are_not_finite_are_refused(tmp_path: Path, way: WayName, value: float) -> None:
    folder = write_model_of(tmp_path, **WIDE)
    tensors = load_file(folder / "model.safetensors")
    tensors["model.layers.0.mlp.up_proj.weight"][3, 40] = value
    save_file(tensors, folder / "model.safetensors")
    message = r"has the tensor model\.layers\.0\.mlp\.up_proj\.weight with values that are NaN or"
    with pytest.raises(ConfigError, match=message):
        load_model(ModelConfig(str(folder), quantization=way))


def test_values_that_the_type_cannot_hold_are_named(tmp_path: Path) -> None:
    folder = write_model_of(tmp_path, **WIDE)
    tensors = load_file(folder / "model.safetensors")
    tensors["model.layers.0.mlp.up_proj.weight"][3, 40] = 1e6
    save_file(tensors, folder / "model.safetensors")
    load_model(ModelConfig(str(folder), dtype="bfloat16", quantization="int8"))
    with pytest.raises(ConfigError, match="values that float16 cannot hold"):
        load_model(ModelConfig(str(folder), dtype="float16", quantization="int8"))


def test_a_tensor_too_many_is_refused_as_in_a_dense_model(tmp_path: Path) -> None:
    """Quantised checkpoints may have biases of zeros besides."""
    folder = write_model_of(tmp_path, **WIDE)
    tensors = load_file(folder / "model.safetensors")
    tensors["model.layers.0.self_attn.q_proj.bias"] = torch.zeros(64)
    save_file(tensors, folder / "model.safetensors")
    with pytest.raises(
        ConfigError, match=r"q_proj\.bias with shape \[64\], which config\.json has no"
    ):
        load_model(ModelConfig(str(folder), quantization="int8"))
