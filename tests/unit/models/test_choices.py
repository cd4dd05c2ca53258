"""sentence-transformers' files to how a model's embeddings are pooled."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from pagemesh.config import ModelConfig
from pagemesh.core.engine import Pooling
from pagemesh.errors import ConfigError
from pagemesh.models.choices import read_pooling
from pagemesh.models.loader import load_model
from tests.unit.models.model_folder import make_tensors, write_model

PREFIX = "sentence_transformers.models."


def write_modules(folder: Path, *names: str, **modes: Any) -> None:
    modules = [
        {"idx": i, "name": str(i), "path": f"{i}_{name}" if i else "", "type": PREFIX + name}
        for i, name in enumerate(names)
    ]
    (folder / "modules.json").write_text(json.dumps(modules))
    (folder / "1_Pooling").mkdir()
    values = {f"pooling_mode_{name}": value for name, value in modes.items()}
    (folder / "1_Pooling/config.json").write_text(json.dumps({"include_prompt": True} | values))


def test_a_folder_that_says_nothing_means_the_last_token_normalised(tmp_path: Path) -> None:
    assert read_pooling(tmp_path) == Pooling("last", normalize=True)


def test_modules_say_how_to_pool(tmp_path: Path) -> None:
    write_modules(tmp_path, "Transformer", "Pooling", mean_tokens=True, cls_token=False)
    assert read_pooling(tmp_path) == Pooling("mean", normalize=False)


@pytest.mark.parametrize(
    ("mode", "kind"), [("mean", "mean"), ("lasttoken", "last"), ("cls", "cls"), (["cls"], "cls")]
)
def test_newer_files_name_the_way_to_pool(tmp_path: Path, mode: object, kind: str) -> None:
    write_modules(tmp_path, "Transformer", "Pooling")
    (tmp_path / "1_Pooling/config.json").write_text(json.dumps({"pooling_mode": mode}))
    assert read_pooling(tmp_path, causal=False) == Pooling(kind, normalize=False)  # type: ignore[arg-type]


def test_only_an_encoder_has_a_first_token_that_saw_the_others(tmp_path: Path) -> None:
    write_modules(tmp_path, "Transformer", "Pooling", cls_token=True)
    assert read_pooling(tmp_path, causal=False) == Pooling("cls", normalize=False)
    with pytest.raises(
        ConfigError, match="chooses the pooling cls, but must choose one of lasttoken"
    ):
        read_pooling(tmp_path)


@pytest.mark.parametrize("mode", ["max", ["cls", "mean"], 3])
def test_other_ways_to_pool_are_refused_in_newer_files(tmp_path: Path, mode: object) -> None:
    write_modules(tmp_path, "Transformer", "Pooling")
    (tmp_path / "1_Pooling/config.json").write_text(json.dumps({"pooling_mode": mode}))
    with pytest.raises(ConfigError, match="but must choose one of lasttoken, mean, cls"):
        read_pooling(tmp_path, causal=False)


def test_a_normalize_module_scales_vectors(tmp_path: Path) -> None:
    write_modules(tmp_path, "Transformer", "Pooling", "Normalize", lasttoken=True)
    assert read_pooling(tmp_path) == Pooling("last", normalize=True)


@pytest.mark.parametrize(
    ("names", "modes", "message"),
    [
        (
            ("Transformer", "Pooling"),
            {"max_tokens": True},
            "chooses the pooling pooling_mode_max_tokens, but",
        ),
        (("Transformer", "Pooling"), {}, "chooses the pooling of nothing, but must choose one of"),
        (
            ("Transformer", "Pooling"),
            {"lasttoken": True, "mean_tokens": True},
            "chooses the pooling lasttoken and mean, but",
        ),
        (("Transformer", "Pooling"), {"lasttoken": 1}, "pooling_mode_lasttoken = 1, but"),
        (("Transformer", "Pooling", "Dense"), {"lasttoken": True}, "has the module 'Dense'"),
        (("Transformer",), {"lasttoken": True}, "has no Pooling module"),
    ],
)
def test_other_ways_to_pool_are_refused(
    tmp_path: Path, names: tuple[str, ...], modes: dict[str, Any], message: str
) -> None:
    write_modules(tmp_path, *names, **modes)
    with pytest.raises(ConfigError, match=message):
        read_pooling(tmp_path)


@pytest.mark.parametrize("text", ["{", "{}", "[1]", '[{"type": "x"}]', "3"])
def test_a_file_that_lists_no_modules_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "modules.json").write_text(text)
    with pytest.raises(ConfigError, match=r"modules\.json"):
        read_pooling(tmp_path)


def test_a_pooling_module_outside_of_the_folder_is_refused(tmp_path: Path) -> None:
    modules = [{"type": PREFIX + "Transformer", "path": ""}, {"type": "Pooling", "path": "../x"}]
    (tmp_path / "modules.json").write_text(json.dumps(modules))
    with pytest.raises(ConfigError, match="lies outside its own"):
        read_pooling(tmp_path)


def base_tensors() -> dict[str, Any]:
    return {
        name.removeprefix("model."): tensor
        for name, tensor in make_tensors().items()
        if name != "lm_head.weight"
    }


def test_a_base_model_makes_embeddings_only(tmp_path: Path) -> None:
    write_model(tmp_path, base_tensors(), architectures=["LlamaModel"])
    model = load_model(ModelConfig(str(tmp_path)))
    assert not model.generates
    assert model.pooling == Pooling("last", normalize=True)


def test_a_model_that_generates_makes_embeddings_as_well(tmp_path: Path) -> None:
    model = load_model(ModelConfig(str(write_model(tmp_path))))
    assert model.generates
    assert model.pooling == Pooling("last", normalize=True)


@pytest.mark.parametrize(
    ("name", "key", "value"),
    [
        ("LlamaModel", "is_causal", False),
        ("LlamaModel", "use_bidirectional_attention", True),
        # gte-Qwen2 and others: a decoder by its name, an encoder by its attention.
        ("LlamaForCausalLM", "is_causal", False),
    ],
)
def test_a_model_that_looks_ahead_is_refused(
    tmp_path: Path, name: str, key: str, value: bool
) -> None:
    tensors = base_tensors() if name == "LlamaModel" else None
    write_model(tmp_path, tensors, architectures=[name], **{key: value})
    with pytest.raises(ConfigError, match=f"{key} = {value}"):
        load_model(ModelConfig(str(tmp_path)))
