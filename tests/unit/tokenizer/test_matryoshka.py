"""Which vectors may be cut, and what is left of them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from pagemesh.errors import ConfigError, InvalidRequestError
from pagemesh.tokenizer.model_defaults import Matryoshka, shorten


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
