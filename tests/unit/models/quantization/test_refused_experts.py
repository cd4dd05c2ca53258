"""Experts whose products cannot be computed together are refused before a weight is read."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch

from pagemesh.errors import ConfigError
from pagemesh.models.checkpoint import Checkpoint
from pagemesh.models.config_json import ConfigJson
from pagemesh.models.quantization.methods import read_quantization
from pagemesh.models.quantization.parts import Packings
from pagemesh.models.registry import find_architecture
from tests.identity.checkpoints import RECIPES, make_checkpoint
from tests.support.quantised_checkpoints import FORMATS, quantise
from tests.support.quantising import Quantised
from tests.unit.models.quantization.test_quantised_refusals import configure, refusal

EXPERT = "model.layers.1.block_sparse_moe.experts.2.w2"


def floats(*shape: int) -> Quantised:
    """A matrix that is not quantised, though others of its kind are."""
    weight = torch.randn(shape)
    return Quantised({"weight": weight}, weight.double())


@pytest.mark.parametrize("name", ["W8A8", "W8A8, static"])
def test_one_that_is_quantised_otherwise_is_named(tmp_path: Path, name: str) -> None:
    make_checkpoint(tmp_path, RECIPES["Mixtral"])
    folder = tmp_path / "quantised"
    quantise(tmp_path, folder, tmp_path / "dense", FORMATS[name], {f"{EXPERT}.": floats})
    configure(folder, ignore=["lm_head", EXPERT])
    first = EXPERT.replace("experts.2", "experts.0")
    assert refusal(folder) == (
        f"{folder}/model.safetensors has input_activations with num_bits = 8 and type = 'int' for {first}.weight, but"
        f" not for {EXPERT}.weight: all experts of a layer must be quantised alike"
    )


@pytest.mark.parametrize(("name", "device"), [("W8A8", "cuda"), ("W8A8, static", "cpu")])
def test_alike_ones_are_taken(tmp_path: Path, name: str, device: str) -> None:
    check(tmp_path, name, device)


def test_those_with_scales_for_activations_are_for_cpus(tmp_path: Path) -> None:
    found = (
        f"{tmp_path}/quantised/model.safetensors has the tensor"
        " model.layers.0.block_sparse_moe.experts.1.w1.input_scale: an input_scale for each expert (static W8A8) is"
        " computed on CPUs alone"
    )
    with pytest.raises(ConfigError, match=re.escape(found)):
        check(tmp_path, "W8A8, static", "cuda")


def check(folder: Path, name: str, device: str) -> None:
    make_checkpoint(folder, RECIPES["Mixtral"])
    quantise(folder, folder / "quantised", folder / "dense", FORMATS[name])
    settings = ConfigJson.read(folder / "quantised/config.json")
    architecture = find_architecture(settings)
    assert architecture is not None
    with Checkpoint.open(folder / "quantised") as checkpoint:
        sources = architecture.named_sources(
            architecture.make_spec(settings), checkpoint.entries.keys()
        )
        packings = Packings(read_quantization(settings), sources, checkpoint.entries)
        packings.check_experts(checkpoint, sources, torch.device(device))
