"""Reads the small JSON files that lie beside a tokenizer, with errors that name file and key."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

from pagemesh.errors import ConfigError
from pagemesh.gguf.documents import read_file

CONFIG_FILE: Final = "tokenizer_config.json"

_SPECIAL_TOKEN_KEYS: Final = (
    "bos_token",
    "eos_token",
    "unk_token",
    "sep_token",
    "pad_token",
    "cls_token",
    "mask_token",
)


def read_json(folder: Path, name: str) -> dict[str, Any]:
    """The JSON object in `folder/name`; empty when there is no such file."""
    path = folder / name
    try:
        text = read_file(path)
    except FileNotFoundError:
        return {}
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} cannot be read: {error}") from error
    try:
        value = json.loads(text)
    except ValueError as error:
        raise ConfigError(f"{path} is not JSON: {error}") from error
    if not isinstance(value, dict):
        raise ConfigError(f"{path} holds {type(value).__name__}, but must hold a JSON object")
    return value


def tokenizer_settings(folder: Path) -> dict[str, Any]:
    """What is said of the tokenizer beside tokenizer.json.

    As in transformers, older folders have some of it in a file of its own, which is not read where the newer file
    says which tokens have been added.
    """
    settings = read_json(folder, CONFIG_FILE)
    if "added_tokens_decoder" in settings:
        return settings
    return {**settings, **read_json(folder, "special_tokens_map.json")}


def special_tokens(folder: Path) -> dict[str, str]:
    """Special tokens by their names in templates; a token is a string or an object with `content`.

    Names that the library does not know are the model's own: those that end as these do, and those of an object
    `extra_special_tokens`.
    """
    settings = tokenizer_settings(folder)
    extra = settings.get("extra_special_tokens")
    own = {key: value for key, value in settings.items() if key.endswith("_token")}
    own |= extra if isinstance(extra, dict) else {}
    found = {key: settings.get(key) for key in _SPECIAL_TOKEN_KEYS} | {
        key: value for key, value in own.items() if key not in _SPECIAL_TOKEN_KEYS
    }
    texts = {
        key: token.get("content") if isinstance(token, dict) else token
        for key, token in found.items()
    }
    return {key: text for key, text in texts.items() if isinstance(text, str)}


def end_token_id(folder: Path) -> int | None:
    """Id of the token by which the tokenizer's files say that a text ends; None when they name none that there is."""
    token = special_tokens(folder).get("eos_token")
    if token is None:
        return None
    decoder = read_json(folder, CONFIG_FILE).get("added_tokens_decoder")
    for id_, added in decoder.items() if isinstance(decoder, dict) else ():
        if isinstance(added, dict) and added.get("content") == token and id_.isdecimal():
            return int(id_)
    tokenizer = read_json(folder, "tokenizer.json")
    for added in tokenizer.get("added_tokens") or ():
        if added.get("content") == token:
            return int(added["id"])
    vocabulary = tokenizer.get("model", {}).get("vocab")
    found = vocabulary.get(token) if isinstance(vocabulary, dict) else None
    return found if isinstance(found, int) else None
