"""Tokens that only files beside tokenizer.json declare: ids are those of transformers' AutoTokenizer."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer as Library

from pagemesh.errors import ConfigError
from pagemesh.tokenizer import Tokenizer
from pagemesh.tokenizer.added_tokens import tokenizer_text
from tests.support.late_imports import transformers

TEXT = "a <one> b<two>c <|im_start|>user <three>"
ONE = {"content": "<one>", "special": True, "normalized": False}
TYPED = {"__type": "AddedToken", "content": "<two>", "lstrip": True, "rstrip": False}


def config(**more: Any) -> dict[str, Any]:
    return {"tokenizer_config.json": {"eos_token": "<|im_end|>", **more}}


FOLDERS: dict[str, dict[str, Any]] = {
    "none": config(),
    "decoder": config(
        added_tokens_decoder={
            # Not in the order of their ids; the second is no special one.
            "9001": {**ONE, "content": "<two>", "special": False, "lstrip": True},
            "9000": ONE,
        }
    ),
    "decoder of what there is": config(
        added_tokens_decoder={"1": {"content": "<|im_start|>", "special": True}}
    ),
    "additional": config(additional_special_tokens=["<one>", TYPED]),
    "extra": config(extra_special_tokens=["<one>", "<two>"], additional_special_tokens=["<three>"]),
    "extra with names": config(extra_special_tokens={"image_token": "<one>", "b": "<two>"}),
    "named": config(bos_token="<one>", image_token="<two>", mask_token="<three>"),
    "named and declared": config(
        bos_token="<one>", added_tokens_decoder={"9000": {**ONE, "special": False}}
    ),
    "older": config(pad_token="<three>")
    | {
        "special_tokens_map.json": {"bos_token": {"content": "<one>"}, "pad_token": "<two>"},
        "added_tokens.json": {"<three>": 9001, "<one>": 9000},
    },
    "older beside a decoder": config(added_tokens_decoder={"9000": ONE})
    | {"special_tokens_map.json": {"additional_special_tokens": ["<two>"]}},
}


def write(demo_model: Path, folder: Path, files: dict[str, Any]) -> Path:
    for name in ("tokenizer.json", "config.json"):
        shutil.copy(demo_model / name, folder)
    for name, content in files.items():
        (folder / name).write_text(json.dumps(content))
    return folder


@pytest.mark.parametrize("name", FOLDERS)
def test_ids_and_template_variables_are_those_of_transformers(
    demo_model: Path, tmp_path: Path, name: str
) -> None:
    folder = write(demo_model, tmp_path, FOLDERS[name])
    reference = transformers.AutoTokenizer.from_pretrained(folder)
    tokenizer = Tokenizer(folder)
    (ids,) = tokenizer.encode_batch([TEXT], add_special_tokens=False)
    assert ids == reference.encode(TEXT, add_special_tokens=False)
    assert tokenizer.decode(ids) == reference.decode(ids, skip_special_tokens=True)
    assert dict(tokenizer.template_variables) == reference.special_tokens_map
    for text in ("<one>", "<two>", "<three>"):
        known = reference.added_tokens_encoder.get(text)
        assert tokenizer.added_token_id(text) == known
    # Grammars are of the same tokens.
    assert (
        Library.from_str(tokenizer_text(folder)).encode(TEXT, add_special_tokens=False).ids == ids
    )


def test_a_token_that_only_the_config_declares_is_one_id(demo_model: Path, tmp_path: Path) -> None:
    tokenizer = Tokenizer(write(demo_model, tmp_path, FOLDERS["additional"]))
    vocab_size = json.loads((demo_model / "config.json").read_text())["vocab_size"]
    (ids,) = tokenizer.encode_batch(["<one>"], add_special_tokens=False)
    assert ids == [tokenizer.added_token_id("<one>")]
    assert set(ids) <= tokenizer.special_token_ids
    assert tokenizer.vocab_size == vocab_size


def test_what_is_declared_already_leaves_the_text_as_it_is(
    demo_model: Path, tmp_path: Path
) -> None:
    folder = write(demo_model, tmp_path, FOLDERS["decoder of what there is"])
    assert tokenizer_text(folder) == (demo_model / "tokenizer.json").read_text()


@pytest.mark.parametrize(
    ("more", "field"),
    [
        ({"added_tokens_decoder": {"x": ONE}}, "added_tokens_decoder"),
        ({"added_tokens_decoder": {"9": {}}}, "added_tokens_decoder"),
        ({"added_tokens_decoder": [ONE]}, "added_tokens_decoder"),
        ({"additional_special_tokens": [5]}, "extra_special_tokens"),
        ({"extra_special_tokens": 5}, "extra_special_tokens"),
    ],
    ids=str,
)
def test_what_is_no_token_is_named(
    demo_model: Path, tmp_path: Path, more: dict[str, Any], field: str
) -> None:
    folder = write(demo_model, tmp_path, config(**more))
    with pytest.raises(ConfigError, match=rf"tokenizer_config.json: {field} must"):
        Tokenizer(folder)
