"""Tokens beside a tokenizer's vocabulary, of which tokenizer_config.json may declare more than tokenizer.json has.

Which there are, in which order they get their ids, and which of their flags hold, is as in transformers since 5.0.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import tokenizers

from pagemesh.errors import ConfigError
from pagemesh.gguf.documents import read_file
from pagemesh.tokenizer.folder import CONFIG_FILE, read_json, special_tokens, tokenizer_settings

_FLAGS: Final = ("single_word", "lstrip", "rstrip", "normalized", "special")


def add_declared_tokens(library: tokenizers.Tokenizer, folder: Path) -> bool:
    """Add what a folder's other files declare; whether there was something. ConfigError names what is wrong."""
    before = library.get_added_tokens_decoder()
    settings = tokenizer_settings(folder)
    named = special_tokens(folder)
    known = {token.content for token in before.values()}
    tokens = []
    for token in _numbered(folder, settings):
        token.special = token.special or token.content in named.values()
        tokens.append(token)
    for token in (*_named(settings, named), *_extra(folder, settings)):
        if token.content not in known | {each.content for each in tokens}:
            tokens.append(token)
    library.add_tokens(tokens)
    return library.get_added_tokens_decoder() != before


def tokenizer_text(folder: Path) -> str:
    """What tokenizer.json would be with these tokens; OSError and UnicodeDecodeError where it cannot be read.

    What is no tokenizer is given back as it is.
    """
    text = read_file(folder / "tokenizer.json")
    try:
        library = tokenizers.Tokenizer.from_str(text)
    # The library raises bare Exception for every fault of the file.
    except Exception:
        return text
    return library.to_str() if add_declared_tokens(library, folder) else text


def _numbered(folder: Path, settings: Mapping[str, Any]) -> Iterator[tokenizers.AddedToken]:
    """Tokens that are declared with their ids, in the order of these."""
    declared = settings.get("added_tokens_decoder")
    if declared is None:
        # Of older folders.
        ids = read_json(folder, "added_tokens.json")
        extra = {token.content for token in _extra(folder, settings)}
        special = extra | set(special_tokens(folder).values())
        declared = {
            id_: {"content": text, "special": text in special, "normalized": text not in special}
            for text, id_ in ids.items()
        }
    try:
        for _, token in sorted((int(id_), token) for id_, token in declared.items()):
            yield _added(token)
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise ConfigError(
            f"{folder / CONFIG_FILE}: added_tokens_decoder must have objects with content by their ids"
        ) from error


def _named(
    settings: Mapping[str, Any], named: Mapping[str, str]
) -> Iterator[tokenizers.AddedToken]:
    for name, text in named.items():
        given = settings.get(name)
        token = _added(given if isinstance(given, dict) else text)
        token.special = True
        yield token


def _extra(folder: Path, settings: Mapping[str, Any]) -> list[tokenizers.AddedToken]:
    listed = settings.get("extra_special_tokens") or settings.get("additional_special_tokens") or []
    # With names, they are among the named ones.
    if isinstance(listed, dict):
        return []
    try:
        return [_added(token) for token in listed]
    except (KeyError, TypeError) as error:
        raise ConfigError(
            f"{folder / CONFIG_FILE}: extra_special_tokens must be a list of tokens, or an object of them"
        ) from error


def _added(token: str | Mapping[str, Any]) -> tokenizers.AddedToken:
    if isinstance(token, str):
        return tokenizers.AddedToken(token, special=True)
    flags = {name: bool(token[name]) for name in _FLAGS if name in token}
    return tokenizers.AddedToken(token["content"], **flags)
