"""A model with another tokenizer, or other values in config.json: a folder that routers and workers read."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from pagemesh.cli import serve
from pagemesh.cli.arguments import UsageError
from pagemesh.cli.settings import UpConfig
from pagemesh.cli.vllm.adapt import adapt
from pagemesh.cli.vllm.variants import Changes, make_variant
from pagemesh.config import HubConfig, ModelConfig
from pagemesh.errors import ConfigError
from pagemesh.models.loader import load_model
from pagemesh.tokenizer.tokenizer import Tokenizer
from tests.unit.models.model_folder import write_model

YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32}


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache/pagemesh/models"


@pytest.fixture
def model(tmp_path: Path) -> Path:
    folder = tmp_path / "model"
    folder.mkdir()
    return write_model(folder)


def changes(text: Sequence[str]) -> Changes:
    return adapt(UpConfig, ["m", *text]).changes


def variant(folder: Path, changes: Changes) -> Path:
    return make_variant(str(folder), changes, HubConfig())


def config_of(folder: Path) -> dict[str, Any]:
    return dict(json.loads((folder / "config.json").read_text()))


@pytest.mark.parametrize(
    ("text", "overrides"),
    [
        (["--hf-overrides", '{"a": 1, "b": {"c": 2}}'], {"a": 1, "b": {"c": 2}}),
        (["--hf-overrides.b.c", "2", "--hf-overrides.a", "x"], {"b": {"c": 2}, "a": "x"}),
        (["--rope-scaling", json.dumps(YARN)], {"rope_scaling": YARN}),
        (["--rope-theta", "1e6"], {"rope_theta": 1e6}),
        (["--hf-overrides={}", "--rope-scaling", "null", "--rope-theta", "None"], {}),
    ],
)
def test_flags_say_what_config_json_should_have(
    text: list[str], overrides: dict[str, object]
) -> None:
    assert changes(text) == Changes(overrides)
    assert bool(changes(text)) == bool(overrides)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (["--hf-overrides", "{"], "--hf-overrides is '{', but must be JSON"),
        (["--hf-overrides", "3"], "--hf-overrides is '3', but must be a JSON object"),
        (["--rope-theta", "big"], "--rope-theta is 'big', but must be JSON"),
    ],
)
def test_what_is_no_json_is_refused(text: list[str], says: str) -> None:
    with pytest.raises(UsageError) as caught:
        changes(text)
    assert str(caught.value) == says


def test_a_models_own_tokenizer_changes_nothing() -> None:
    assert not changes(["--tokenizer", "m/"])
    assert changes(["--tokenizer", "other"]) == Changes(tokenizer="other")


def test_everything_but_the_config_is_the_models(cache: Path, model: Path) -> None:
    found = variant(model, Changes({"rope_scaling": YARN}))
    assert found.parent == cache
    assert {path.name for path in found.iterdir()} == {path.name for path in model.iterdir()}
    assert all(path.is_symlink() for path in found.iterdir() if path.name != "config.json")
    assert config_of(found) == config_of(model) | {"rope_scaling": YARN}
    assert variant(model, Changes({"rope_scaling": YARN})) == found
    assert variant(model, Changes({"rope_theta": 5.0})) != found
    assert len(list(cache.iterdir())) == 2


def test_a_stretched_context_is_computed(cache: Path, model: Path) -> None:
    plain = load_model(ModelConfig(str(model)))
    stretched = load_model(
        ModelConfig(str(variant(model, Changes({"rope_scaling": YARN}))), max_model_len=128)
    )
    assert (plain.max_model_len, stretched.max_model_len) == (32, 128)
    assert stretched.fingerprint != plain.fingerprint


def test_rope_is_changed_where_a_file_has_it(cache: Path, tmp_path: Path) -> None:
    folder = write_model(tmp_path, rope_parameters={"rope_theta": 7e5, "rope_type": "default"})
    stretched = config_of(variant(folder, Changes({"rope_scaling": YARN})))
    assert stretched["rope_parameters"] == {"rope_theta": 7e5} | YARN
    assert "rope_scaling" not in stretched
    turned = config_of(variant(folder, Changes({"rope_theta": 9.0})))
    assert turned["rope_parameters"] == {"rope_theta": 9.0, "rope_type": "default"}
    both = {"rope_parameters": YARN}
    assert config_of(variant(folder, Changes(both)))["rope_parameters"] == YARN


def test_parts_of_a_model_get_members(cache: Path, tmp_path: Path) -> None:
    folder = write_model(tmp_path, text_config={"a": 1, "b": 2})
    changed = config_of(variant(folder, Changes({"text_config": {"b": 3}})))
    assert changed["text_config"] == {"a": 1, "b": 3}


def test_another_tokenizer_comes_with_its_template(
    cache: Path, tmp_path: Path, demo_model: Path
) -> None:
    (model := tmp_path / "model").mkdir()
    for path in demo_model.iterdir():
        if path.is_file():
            (model / path.name).symlink_to(path)
    (other := tmp_path / "other").mkdir()
    (other / "tokenizer.json").write_bytes((demo_model / "tokenizer.json").read_bytes())
    (other / "chat_template.jinja").write_text("{{ messages[0].content }} from another folder")
    (other / "config.json").write_text("{}")
    found = variant(model, Changes(tokenizer=str(other)))
    assert (found / "tokenizer.json").readlink() == other / "tokenizer.json"
    assert not (found / "tokenizer_config.json").exists()
    assert config_of(found) == config_of(model)
    tokenizer = Tokenizer(found)
    ids = asyncio.run(tokenizer.encode_chat([{"role": "user", "content": "hello"}]))
    assert tokenizer.decode(ids) == "hello from another folder"


def test_a_tokenizer_that_is_not_there_is_named(cache: Path, model: Path) -> None:
    with pytest.raises(ConfigError, match="--tokenizer is '/none', but there is no such folder"):
        variant(model, Changes(tokenizer="/none"))


def test_a_cache_that_cannot_be_written_is_named(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    with pytest.raises(ConfigError, match="XDG_CACHE_HOME names another place"):
        variant(model, Changes({"a": 1}))


def test_the_changed_model_is_served_under_its_name(
    cache: Path, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(serve, "visible_gpus", tuple)
    given = ["--rope-scaling", json.dumps(YARN), "--max-model-len", "96", "--port", "9000"]
    first, second, *others = serve.own_arguments([str(model), *given])
    name, _, folder = second.partition("=")
    assert (first, name) == ("--model", "model")
    assert config_of(Path(folder))["rope_scaling"] == YARN
    assert "--model" not in others
    assert others[:4] == ["--max-model-len", "96", "--port", "9000"]
    with pytest.raises(UsageError, match="is for one, but --model has 2"):
        serve.own_arguments(["--model", str(model), "demo", *given])
