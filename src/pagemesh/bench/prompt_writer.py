"""Texts of so many tokens, by the tokenizer of an endpoint's model."""

from __future__ import annotations

import random
from typing import Final, NamedTuple

from pagemesh.bench.settings import BenchServeConfig
from pagemesh.config.served import find_local
from pagemesh.errors import ConfigError
from pagemesh.models.resolve import resolve_model_path
from pagemesh.tokenizer.tokenizer import Tokenizer

_WORD_MARKS: Final = ("Ġ", "▁")
"""How vocabularies spell the space in front of a word."""

_MIN_WORDS: Final = 32
_MAX_TRIES: Final = 20


def endpoint_tokenizer(config: BenchServeConfig, model: str) -> str:
    """Its folder or hub id. Raises ConfigError when neither --tokenizer nor the model's name is one."""
    name = config.endpoint.tokenizer
    if name is None and "/" not in model and find_local(model) is None:
        raise ConfigError(
            f"--tokenizer is unset, but must be a folder or a hub id: the model's name, {model!r}, is none"
        )
    return name or model


def load_tokenizer(name: str) -> Tokenizer:
    """The tokenizer itself. Raises ConfigError when it cannot be found."""
    try:
        return Tokenizer(resolve_model_path(name, need="tokenizer"))
    except ConfigError as error:
        raise ConfigError(error.message.replace("--model is", "--tokenizer is", 1)) from error


class Prompt(NamedTuple):
    """A text."""

    text: str
    num_tokens: int
    """With those that the tokenizer puts in front and behind."""


_NOTHING: Final = Prompt("", 0)


class PromptWriter:
    """Writes words by chance. They are those that are a token each, so that a text's tokens are known beforehand;
    what comes out is counted all the same, and mended where a tokenizer joins what was apart.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._words = _whole_words(tokenizer) or _lone_tokens(tokenizer)

    def count(self, text: str) -> int:
        """Tokens of a prompt, with those that the tokenizer puts in front and behind."""
        (ids,) = self._tokenizer.encode_batch([text], add_special_tokens=True)
        return len(ids)

    def write(self, draws: random.Random, num_tokens: int, prefix: Prompt = _NOTHING) -> Prompt:
        """A text of that many tokens that begins with the prefix; the nearest that was found where there is none."""
        words = draws.choices(self._words, k=max(0, num_tokens - prefix.num_tokens))
        best = prefix
        for _ in range(_MAX_TRIES):
            text = prefix.text + "".join(words)
            text = text if prefix.text else text.lstrip()
            found = Prompt(text, self.count(text))
            num_missing = num_tokens - found.num_tokens
            if abs(num_missing) < abs(num_tokens - best.num_tokens):
                best = found
            if num_missing == 0:
                break
            per_word = max(1.0, (found.num_tokens - prefix.num_tokens) / max(1, len(words)))
            num_words = max(1, round(abs(num_missing) / per_word))
            if num_missing > 0:
                words += draws.choices(self._words, k=num_words)
            else:
                # Another last word, too: the same one would be joined again.
                del words[-num_words - 1 :]
                words += draws.choices(self._words, k=1)
        return best


def _whole_words(tokenizer: Tokenizer) -> list[str]:
    """Words of plain letters with a space in front that are one token wherever they stand; none if too few."""
    spelled = tokenizer.token_strings(range(tokenizer.vocab_size))
    words = [
        f" {token[1:]}"
        for token in spelled
        if token.startswith(_WORD_MARKS) and token[1:].isascii() and token[1:].isalpha()
    ]
    return _that_stay_apart(tokenizer, words)


def _lone_tokens(tokenizer: Tokenizer) -> list[str]:
    """What vocabularies without such words have: any texts, with a space in front, for a token each."""
    ids = [id_ for id_ in range(tokenizer.vocab_size) if id_ not in tokenizer.special_token_ids]
    texts = {tokenizer.decode([id_]).strip() for id_ in ids}
    words = sorted(f" {text}" for text in texts if text.isprintable() and "�" not in text and text)
    return _that_stay_apart(tokenizer, words) or words or [" a"]


def _that_stay_apart(tokenizer: Tokenizer, words: list[str]) -> list[str]:
    """Those of which two in a row are a token more than one."""
    once = tokenizer.encode_batch(words, add_special_tokens=False)
    twice = tokenizer.encode_batch([2 * word for word in words], add_special_tokens=False)
    found = [w for w, one, two in zip(words, once, twice, strict=True) if len(two) == len(one) + 1]
    return found if len(found) >= _MIN_WORDS else []
