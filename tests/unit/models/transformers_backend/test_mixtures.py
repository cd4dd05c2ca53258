"""Experts of transformers' mixtures are computed by pagemesh's kernels where these know how."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from structlog.testing import capture_logs

from pagemesh.kernels.dispatch import using
from pagemesh.kernels.target import Target, playing
from pagemesh.models.transformers_backend.experts import BatchInvariantExperts, stacked_experts
from tests.support.quantised_checkpoints import FORMATS, quantise
from tests.unit.models.transformers_backend.answers import MIXTURES, load, save
from tests.unit.models.transformers_backend.tiny_models import make_model

pytestmark = pytest.mark.costly


@pytest.mark.parametrize("name", ["MixtralConfig", "DeepseekV3Config", "GptOssConfig"])
def test_mixtures_of_a_loaded_model_are_ours(name: str, tmp_path: Path) -> None:
    folder = save(tmp_path, name, **MIXTURES[name])
    with capture_logs() as logs:
        decoder: Any = load(folder).decoder
    assert not logs
    kinds = [type(module) for module in decoder._model.modules()]
    num_mixtures = 1 if name == "DeepseekV3Config" else 2
    assert kinds.count(BatchInvariantExperts) == num_mixtures
    others = {
        path: parameter
        for path, parameter in decoder._model.named_parameters()
        if parameter.dim() > 1
    }
    assert list(others) == ["model.embed_tokens.weight"]


def test_experts_that_nobody_else_computes_stay_theirs() -> None:
    """Another gate than kernels know, none at all, or a norm behind them."""
    model = make_model("MixtralConfig", **MIXTURES["MixtralConfig"])
    first, second = (layer.mlp.experts for layer in model.model.layers)
    assert len(stacked_experts(model)) == 2
    first.act_fn = torch.nn.ReLU()
    assert [each.module for each in stacked_experts(model)] == [second]
    second.has_post_expert_norm = True
    assert not stacked_experts(model)
    second.has_post_expert_norm, second.has_gate = False, False
    assert not stacked_experts(model)


def test_experts_refuse_hidden_states_of_another_type() -> None:
    model = make_model("MixtralConfig", **MIXTURES["MixtralConfig"])
    experts = stacked_experts(model)[0].make({})
    hidden, chosen = torch.zeros(3, 64, dtype=torch.bfloat16), torch.tensor([[0, 1]] * 3)
    with pytest.raises(
        ValueError, match=r"of torch\.bfloat16 do not fit experts in torch\.float32"
    ):
        experts(hidden, chosen, torch.ones(3, 2))


def test_on_a_gpu_experts_are_tritons(tmp_path: Path) -> None:
    save(tmp_path, "MixtralConfig", **MIXTURES["MixtralConfig"])
    quantise(tmp_path, tmp_path / "quantised", tmp_path / "dense", FORMATS["W8A16"])
    with using("cuda"), playing(Target(90, 4, 232_448)), capture_logs() as logs:
        model = load(tmp_path / "quantised", dtype="bfloat16")
    assert [(entry["event"], entry["left_dense"]) for entry in logs] == [
        ("weights are quantised", [])
    ]
    module = model.decoder._model.get_submodule("model.layers.1.mlp.experts")
    assert type(module._experts).__name__ == "CudaExperts"
