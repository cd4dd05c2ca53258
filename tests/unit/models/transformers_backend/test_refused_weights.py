"""Quantised checkpoints that transformers would misread are refused before it reads them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from pagemesh.errors import ConfigError
from pagemesh.models.transformers_backend import quantised as reading
from tests.unit.models.transformers_backend.answers import load, quantised_llama

pytestmark = pytest.mark.costly

UP = "model.layers.1.mlp.up_proj"


def change_tensors(folder: Path, changes: Mapping[str, torch.Tensor | None]) -> None:
    """A change to None takes the tensor away."""
    tensors: dict[str, Any] = load_file(folder / "model.safetensors") | dict(changes)
    kept = {name: tensor for name, tensor in tensors.items() if tensor is not None}
    save_file(kept, folder / "model.safetensors")


def test_biases_of_zeros_and_scales_of_kv_may_be_there_besides(tmp_path: Path) -> None:
    """AutoGPTQ gives a bias to each module."""
    folder = quantised_llama(tmp_path, "GPTQ")
    attention = "model.layers.1.self_attn"
    change_tensors(
        folder,
        {f"{UP}.bias": torch.zeros(96), f"{attention}.k_scale": torch.tensor(0.5)},
    )
    load(folder)
    change_tensors(folder, {f"{UP}.bias": torch.ones(96)})
    with pytest.raises(ConfigError, match=r"up_proj\.bias with other numbers than zeros, which"):
        load(folder)


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({f"{UP}.qweight": None}, f"lacks the tensor {UP}.qweight of shape [8, 96]"),
        (
            {f"{UP}.scales": torch.ones(2, 96)},
            f"has the tensor {UP}.scales with shape [2, 96], but config.json asks for [8, 96]",
        ),
        (
            {"model.layers.1.mlp.more_proj.qweight": torch.ones(8, 96, dtype=torch.int32)},
            "has the tensor model.layers.1.mlp.more_proj.qweight of type I32, which config.json has no place for",
        ),
        (
            {f"{UP}.scales": torch.full((8, 96), torch.nan)},
            f"has the tensor {UP}.qweight with values that are NaN or infinite",
        ),
    ],
    ids=["missing", "misshapen", "too many", "not finite"],
)
def test_what_cannot_be_read_is_refused_before_transformers_reads(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    changes: dict[str, torch.Tensor | None],
    told: str,
) -> None:
    folder = quantised_llama(tmp_path, "GPTQ")
    change_tensors(folder, changes)
    monkeypatch.delattr(reading, "read_model")
    with pytest.raises(ConfigError) as caught:
        load(folder)
    assert told in caught.value.message


def test_other_methods_are_refused_as_by_pagemeshs_own_decoders(tmp_path: Path) -> None:
    folder = quantised_llama(tmp_path)
    config = json.loads((folder / "config.json").read_text())
    config["quantization_config"] |= {"quant_method": "aqlm"}
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(ConfigError, match="quantised by aqlm, which cannot be read"):
        load(folder)
