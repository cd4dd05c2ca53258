from __future__ import annotations

import json
from pathlib import Path

import pytest

from pagemesh.config import GenerationConfig
from pagemesh.errors import ConfigError
from pagemesh.tokenizer.model_defaults import GenerationDefaults, load_generation_defaults


def load(folder: Path, **config: object) -> GenerationDefaults:
    (folder / "generation_config.json").write_text(json.dumps(config))
    return load_generation_defaults(folder)


def test_a_model_without_defaults_samples_plainly(tmp_path: Path) -> None:
    plain = GenerationDefaults(temperature=1.0, top_p=1.0, top_k=0, max_tokens=None)
    assert load_generation_defaults(tmp_path) == plain
    assert load(tmp_path) == plain


def test_the_models_own_settings_are_the_defaults(tmp_path: Path) -> None:
    settings = load(tmp_path, temperature=0.6, top_p=0.95, top_k=20, max_new_tokens=64)
    assert settings == GenerationDefaults(0.6, 0.95, 20, max_tokens=64)
    settings = load(tmp_path, min_p=0.05, repetition_penalty=1.1)
    assert settings == GenerationDefaults(min_p=0.05, repetition_penalty=1.1)


def test_no_sampling_means_greedy_unless_a_temperature_is_set(tmp_path: Path) -> None:
    assert load(tmp_path, do_sample=False).temperature == 0.0
    assert load(tmp_path, do_sample=False, temperature=0.5).temperature == 0.5
    assert load(tmp_path, do_sample=True).temperature == 1.0


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("temperature", -1),
        ("top_p", 2),
        ("top_k", "many"),
        ("temperature", True),
        ("min_p", 1.5),
        ("repetition_penalty", 0),
    ],
)
def test_a_setting_that_cannot_be_is_named(tmp_path: Path, key: str, value: object) -> None:
    with pytest.raises(ConfigError, match=rf"generation_config\.json: {key} is {value!r}"):
        load(tmp_path, **{key: value})


def test_vllms_defaults_are_neutral(tmp_path: Path) -> None:
    load(tmp_path, temperature=0.6, do_sample=False, max_new_tokens=64)
    neutral = load_generation_defaults(tmp_path, GenerationConfig("vllm"))
    assert neutral == GenerationDefaults()


def test_another_folders_file_holds_and_limits_all_requests(tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    load(tmp_path, temperature=0.6, top_p=0.5)
    load(other, temperature=0.3, max_new_tokens=7)
    settings = GenerationConfig(str(other))
    found = load_generation_defaults(tmp_path, settings)
    assert found == GenerationDefaults(0.3, max_tokens=7, most_tokens=7)
    (other / "generation_config.json").write_text('{"top_k": -2}')
    with pytest.raises(ConfigError, match=rf"{other}/generation_config\.json: top_k is -2"):
        load_generation_defaults(tmp_path, settings)
    (other / "generation_config.json").unlink()
    with pytest.raises(
        ConfigError, match=r"--generation-config is .*other', but must be auto, vllm"
    ):
        load_generation_defaults(tmp_path, settings)


def test_overrides_win_and_their_limit_holds_for_all_requests(tmp_path: Path) -> None:
    load(tmp_path, temperature=0.6, top_p=0.5, top_k=3, do_sample=False, max_new_tokens=64)
    text = '{"temperature": null, "top_p": 0.9, "do_sample": true, "max_new_tokens": 9}'
    for source, top_k in (("auto", 3), ("vllm", 0)):
        found = load_generation_defaults(tmp_path, GenerationConfig(source, text))
        expected = GenerationDefaults(1.0, 0.9, top_k, max_tokens=9, most_tokens=9)
        assert found == expected
    # A limit of the model's own is none that requests may not exceed.
    found = load_generation_defaults(
        tmp_path, GenerationConfig(override_generation_config='{"max_new_tokens": null}')
    )
    assert (found.max_tokens, found.most_tokens) == (None, None)
    assert load_generation_defaults(tmp_path).most_tokens is None
