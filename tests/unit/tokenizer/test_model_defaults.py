"""Which sampling a model asks for, which vectors may be cut, and what is left of them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from pagemesh.config import GenerationConfig
from pagemesh.errors import ConfigError, InvalidRequestError
from pagemesh.tokenizer.model_defaults import (
    GenerationDefaults,
    Matryoshka,
    load_generation_defaults,
    shorten,
)


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


def read(folder: Path, **config: Any) -> Matryoshka:
    (folder / "config.json").write_text(json.dumps(config))
    return Matryoshka.read(folder)


def test_vectors_of_a_model_that_says_nothing_are_not_cut(tmp_path: Path) -> None:
    for model in (Matryoshka.read(tmp_path), read(tmp_path), read(tmp_path, is_matryoshka=False)):
        with pytest.raises(
            InvalidRequestError, match="dimensions is 2, but the model was not"
        ) as e:
            model.check(2)
        assert e.value.param == "dimensions"


def test_a_model_may_name_the_lengths(tmp_path: Path) -> None:
    read(tmp_path, is_matryoshka=True).check(7)
    listed = read(tmp_path, matryoshka_dimensions=[64, 128])
    listed.check(128)
    with pytest.raises(
        InvalidRequestError, match="dimensions is 7, but the model's may be 64, 128"
    ):
        listed.check(7)


@pytest.mark.parametrize("lengths", [[], [0], ["8"], 8, [True]])
def test_lengths_that_cannot_be_are_named(tmp_path: Path, lengths: Any) -> None:
    with pytest.raises(ConfigError, match=r"config.json: matryoshka_dimensions is .*positive"):
        read(tmp_path, matryoshka_dimensions=lengths)


def test_a_vector_of_length_one_has_it_again() -> None:
    assert shorten([0.48, 0.36, 0.8], 2) == pytest.approx([0.8, 0.6])
    assert shorten([3.0, 4.0, 12.0], 2) == [3.0, 4.0]
    assert shorten([0.0, 0.0, 1.0], 2) == [0.0, 0.0]
    assert shorten([3.0, 4.0], 2) == [3.0, 4.0]
    with pytest.raises(
        InvalidRequestError, match="dimensions is 3, but the model's vectors have 2"
    ):
        shorten([3.0, 4.0], 3)
