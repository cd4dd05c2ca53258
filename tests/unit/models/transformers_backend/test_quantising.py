"""`--quantization` beside dense checkpoints of models of transformers."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from pagemesh.models.quantization import ways
from pagemesh.models.quantization.rounding import round_weight
from pagemesh.models.quantization.ways import WAY_NAMES, QuantizationWay, WayName
from tests.unit.models.transformers_backend.answers import WIDE, answer, load, save

pytestmark = pytest.mark.costly


def write_twin(folder: Path, twin: Path, way: WayName, is_rounded: Callable[[str], bool]) -> None:
    """The floats that linear modules become."""
    shutil.copytree(folder, twin)
    tensors = load_file(folder / "model.safetensors")
    for name in filter(is_rounded, tensors):
        is_head = name in ("lm_head.weight", "model.embed_tokens.weight")
        matrix = tensors[name]
        to = QuantizationWay(way).rounding("lm_head" if is_head else name, tuple(matrix.shape))
        assert to is not None
        tensors[name] = round_weight(matrix, to, torch.bfloat16).dense()
    save_file(tensors, twin / "model.safetensors", metadata={"format": "pt"})


@pytest.mark.parametrize("way", WAY_NAMES)
@pytest.mark.parametrize("is_tied", [False, True], ids=["own head", "tied head"])
def test_ways_make_the_model_of_their_codes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, way: WayName, is_tied: bool
) -> None:
    folder = save(tmp_path / "model", "LlamaConfig", **WIDE, tie_word_embeddings=is_tied)
    head = "embed_tokens" if is_tied else "lm_head"
    write_twin(folder, tmp_path / "twin", way, lambda name: "_proj." in name or head in name)
    rounded = answer(folder, monkeypatch, quantization=way)
    assert rounded.tokens == answer(tmp_path / "twin", monkeypatch).tokens
    assert rounded.multiplied == [kind for kind in rounded.multiplied if kind != "Dense"]
    assert len(rounded.multiplied) == 15
    assert rounded.log["quantization"] == way
    tables = [] if is_tied else ["model.embed_tokens.weight (looked up)"]
    assert rounded.log["left_dense"] == tables


@pytest.mark.parametrize("way", WAY_NAMES)
def test_ways_leave_routers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, way: WayName) -> None:
    settings = WIDE | {
        "intermediate_size": 80,
        "num_experts": 4,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 32,
        "shared_expert_intermediate_size": 64,
    }
    folder = save(tmp_path / "model", "Qwen2MoeConfig", **settings, mlp_only_layers=[0])
    left = ("down_proj",) if way == "int4" else ()

    def is_rounded(name: str) -> bool:
        if name.endswith("bias"):
            return False
        if "layers.0.mlp" in name and any(part in name for part in left):
            return False
        return "_proj." in name or "lm_head" in name

    write_twin(folder, tmp_path / "twin", way, is_rounded)
    rounded = answer(folder, monkeypatch, quantization=way)
    assert rounded.tokens == answer(tmp_path / "twin", monkeypatch).tokens
    kind = "ScaledFp8" if way == "fp8" else "GroupInt"
    assert rounded.experts == [kind, kind]
    told = [
        "model.embed_tokens.weight (looked up)",
        "model.layers.*.mlp.down_proj.weight (80 inputs are no groups of 32)",
        "model.layers.*.mlp.gate.weight (read by the model's own code)",
        "model.layers.*.mlp.shared_expert_gate.weight (chooses experts)",
    ]
    assert sorted(rounded.log["left_dense"]) == [each for each in told if left or "80" not in each]


def test_each_way_and_each_rule_is_another_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = save(tmp_path, "LlamaConfig", **WIDE)
    loads = [load(folder, quantization=way) for way in (None, *WAY_NAMES)]
    assert [each.quantization for each in loads] == ["", *WAY_NAMES]
    names = [each.fingerprint for each in loads]
    assert load(folder, quantization="int4").fingerprint == names[-1]
    monkeypatch.setattr(ways, "RULE", ways.RULE + 1)
    assert load(folder).fingerprint == names[0]
    names += [load(folder, quantization=way).fingerprint for way in WAY_NAMES]
    assert len(set(names)) == 7
