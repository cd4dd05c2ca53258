"""Scales of 8-bit keys and values: found under every name that checkpoints have for them."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from pagemesh.config import ModelConfig
from pagemesh.errors import ConfigError
from pagemesh.kernels.paged_attention import LayerAttention
from pagemesh.models.architectures.architecture import read_scale_name
from pagemesh.models.checkpoint import Checkpoint
from pagemesh.models.choices import FP8_KV
from pagemesh.models.kv_scales import CheckpointScales
from pagemesh.models.loader import load_model
from pagemesh.models.parameters import HOST, ModelTarget
from tests.unit.models.model_folder import make_tensors, write_model

CPU = torch.device("cpu")
ATTENTION = "model.layers.0.self_attn."


def checkpoint(folder: Path, **tensors: torch.Tensor) -> Checkpoint:
    save_file(
        {name.replace("__", "."): tensor for name, tensor in tensors.items()},
        folder / "model.safetensors",
    )
    return Checkpoint.open(folder)


@pytest.mark.parametrize(
    ("keys", "values"),
    [
        ("self_attn.k_scale", "self_attn.v_scale"),
        ("self_attn.attn.k_scale", "self_attn.attn.v_scale"),
        ("self_attn.k_proj.k_scale", "self_attn.v_proj.v_scale"),
    ],
)
def test_scales_are_found_under_the_names_in_use(tmp_path: Path, keys: str, values: str) -> None:
    shared = LayerAttention(scale=0.5)
    with checkpoint(
        tmp_path,
        **{
            f"model.layers.1.{keys}": torch.tensor(0.25),
            f"model.layers.1.{values}": torch.tensor([2.0, 3.0]),
            f"layers.2.{keys}": torch.tensor([4.0], dtype=torch.bfloat16),
        },
    ) as opened:
        layers = CheckpointScales(opened, FP8_KV).give([shared] * 4, 2, CPU)
    scales = [
        (layer.kv_scales.keys.tolist(), layer.kv_scales.values.tolist())
        for layer in layers
        if layer.kv_scales is not None
    ]
    ones = [1.0, 1.0]
    assert scales == [(ones, ones), ([0.25, 0.25], [2.0, 3.0]), ([4.0, 4.0], ones), (ones, ones)]
    assert layers[0] is layers[3]
    assert {layer.scale for layer in layers} == {0.5}


@pytest.mark.parametrize(
    ("scale", "complaint"),
    [
        (torch.tensor([1.0, 2.0, 3.0]), "with 3 numbers, but must have one, or one for each of 2"),
        (torch.tensor([1.0, 0.0]), r"of \[1\.0, 0\.0\], but must be positive"),
        (torch.tensor(float("nan")), r"of \[nan\], but must be positive"),
    ],
)
def test_scales_that_cannot_be_are_refused(
    tmp_path: Path, scale: torch.Tensor, complaint: str
) -> None:
    name = ATTENTION + "k_scale"
    with (
        checkpoint(tmp_path, **{name: scale}) as opened,
        pytest.raises(ConfigError, match=f"model.safetensors has the tensor {name} {complaint}"),
    ):
        CheckpointScales(opened, FP8_KV).give([LayerAttention(scale=1.0)], 2, CPU)


def test_scales_are_told_from_other_tensors() -> None:
    name = "model.layers.11.self_attn.k_scale"
    assert read_scale_name(name) == (name, 11, "k")
    for other in ("self_attn.k_proj.weight_scale", "self_attn.q_scale", "mlp.k_scale"):
        assert read_scale_name(f"model.layers.11.{other}") is None


def test_a_models_scales_are_part_of_what_it_is_where_kv_has_8_bits(tmp_path: Path) -> None:
    folders = []
    for scale in (0.5, 0.75):
        folder = tmp_path / str(scale)
        folder.mkdir()
        tensors = make_tensors(**{ATTENTION + "k_scale": torch.tensor(scale)})
        folders.append(ModelConfig(str(write_model(folder, tensors))))
    for_bits = [load_model(folder, ModelTarget(HOST, "fp8")) for folder in folders]
    assert for_bits[0].block_layout(16).dtype == "float8_e4m3fn"
    scales = for_bits[1].layer_attention[0].kv_scales
    assert scales is not None
    assert (scales.keys.tolist(), scales.values.tolist()) == ([0.75], [1.0])
    assert for_bits[0].fingerprint != for_bits[1].fingerprint
    # In int8 each token brings its own.
    in_int8 = load_model(folders[1], ModelTarget(HOST, "int8"))
    assert in_int8.block_layout(16).dtype == "int8"
    assert in_int8.layer_attention[0].kv_scales is None
    # Without 8 bits they say nothing.
    own = [load_model(folder) for folder in folders]
    assert own[0].fingerprint == own[1].fingerprint
    assert own[0].layer_attention[0].kv_scales is None
