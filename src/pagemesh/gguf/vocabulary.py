"""The tokens of a GGUF file: what they are, the ids with a meaning, and what is put around a text."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from enum import IntEnum
from typing import Any, Final

from pagemesh.errors import ConfigError, shown
from pagemesh.gguf.keys import Keys
from pagemesh.gguf.model import GgufModel

Json = dict[str, Any]

PREFIX: Final = "tokenizer.ggml"
BLANK: Final = "▁"
"""Stands for a blank within a token."""

WORD_PIECES: Final = "bert"
UNIGRAM: Final = "t5"
"""Kinds of tokenizers, as llama.cpp names them after the first model that had them."""

_MOST_TOKEN_CHARS: Final = 2**12
"""The longest of known models are runs of some hundred blanks; of unigrams the library recurses as deep."""

_DEFAULT_IDS: Final[Mapping[str, Mapping[str, int]]] = {
    WORD_PIECES: {"cls_token_id": 101, "seperator_token_id": 102, "unknown_token_id": 100},
    UNIGRAM: {"eos_token_id": 1, "unknown_token_id": 2},
}
"""What llama.cpp takes where a file does not say."""


class TokenType(IntEnum):
    """Of tokens, as ggml numbers them."""

    NORMAL = 1
    UNKNOWN = 2
    CONTROL = 3
    USER_DEFINED = 4
    UNUSED = 5
    BYTE = 6


class Vocabulary:
    """The tokens, what they are, and the ids with a meaning; ConfigError for what cannot be."""

    def __init__(self, model: GgufModel) -> None:
        self.keys = Keys(model, PREFIX)
        self.kind = self.keys.text("model")
        texts = self.keys.texts("tokens")
        num_rows = model.num_rows("token_embd")
        if len(texts) > num_rows:
            raise self.keys.bad("tokens", f"at most {num_rows}, the rows of token_embd.weight")
        self.tokens: Sequence[str] = list(texts)
        longest = max(self.tokens, key=len, default="")
        if len(longest) > _MOST_TOKEN_CHARS:
            raise ConfigError(
                f"{model.path} has a token of {len(longest)} characters in {PREFIX}.tokens,"
                f" {shown(longest)}, but {_MOST_TOKEN_CHARS} are the most"
            )
        count = len(self.tokens)
        self.types: Sequence[int] = (
            [TokenType.NORMAL] * count
            if self.keys.get("token_type") is None
            else self.keys.numbers("token_type", count)
        )
        if self.kind == WORD_PIECES:
            self.tokens = [*map(_word_piece, self.tokens, self.types)]
        self.ids = {token: id_ for id_, token in enumerate(self.tokens)}
        if len(self.ids) < count:
            twice = next(t for id_, t in enumerate(self.tokens) if self.ids[t] != id_)
            raise ConfigError(f"{model.path} has the token {twice!r} twice in {PREFIX}.tokens")

    def special(self, key: str) -> str | None:
        """The token whose id a key says, or llama.cpp does in its place."""
        id_ = self.keys.get(key)
        if id_ is None:
            default = _DEFAULT_IDS.get(self.kind or "", {}).get(key, len(self.tokens))
            return self.tokens[default] if default < len(self.tokens) else None
        if type(id_) is not int or not 0 <= id_ < len(self.tokens):
            raise self.keys.bad(key, f"an id below {len(self.tokens)}")
        return self.tokens[id_]

    def required(self, key: str, why: str) -> str:
        """The same for a token that must be there."""
        token = self.special(key)
        if token is None:
            raise self.keys.bad(key, f"there, since {why}")
        return token

    def of_type(self, *types: TokenType) -> Iterator[tuple[int, str]]:
        """Ids and texts."""
        numbers = frozenset(map(int, types))
        for id_, type_ in enumerate(self.types):
            if type_ in numbers:
                yield id_, self.tokens[id_]

    def scores(self) -> Sequence[float]:
        """One finite number for each token."""
        scores = self.keys.numbers("scores", len(self.tokens))
        if not all(map(math.isfinite, scores)):
            raise self.keys.bad("scores", "finite numbers alone")
        return scores

    def added(self) -> list[Json]:
        """Tokens that are found in a text before it is cut."""
        return [
            {
                "id": id_,
                "content": text,
                "single_word": False,
                "lstrip": False,
                "rstrip": False,
                "normalized": False,
                "special": self.types[id_] != TokenType.USER_DEFINED,
            }
            for id_, text in self.of_type(
                TokenType.UNKNOWN, TokenType.CONTROL, TokenType.USER_DEFINED
            )
            if text
        ]

    def ends(self, adds_begin: bool, adds_end: bool, between: Sequence[Json] = ()) -> Json | None:
        """What puts the tokens of begin and end around a text, where the file does not say otherwise."""
        begin = "bos_token_id" if self.keys.flag("add_bos_token", adds_begin) else None
        end = "eos_token_id" if self.keys.flag("add_eos_token", adds_end) else None
        return self.around(begin, end, between)

    def around(
        self, begin_key: str | None, end_key: str | None, between: Sequence[Json] = ()
    ) -> Json | None:
        """What puts the tokens that these keys name around a text."""
        why = "texts get this token"
        begin = None if begin_key is None else self.required(begin_key, why)
        end = None if end_key is None else self.required(end_key, why)
        around = [token for token in (begin, end) if token is not None]
        if not around:
            return between[0] if between else None
        single = [_special(begin, 0), {"Sequence": {"id": "A", "type_id": 0}}, _special(end, 0)]
        pair = [
            *single,
            _special(begin, 1),
            {"Sequence": {"id": "B", "type_id": 1}},
            _special(end, 1),
        ]
        template = {
            "type": "TemplateProcessing",
            "single": [part for part in single if part],
            "pair": [part for part in pair if part],
            "special_tokens": {
                token: {"id": token, "ids": [self.ids[token]], "tokens": [token]}
                for token in around
            },
        }
        return {"type": "Sequence", "processors": [*between, template]} if between else template


def _special(token: str | None, type_id: int) -> Json | None:
    return None if token is None else {"SpecialToken": {"id": token, "type_id": type_id}}


def _word_piece(token: str, type_: int) -> str:
    """As WordPiece has it: llama.cpp marks where a word begins, and not where it goes on.

    Tokens in brackets have no mark in older files, whatever their type.
    """
    if type_ == TokenType.CONTROL or (token.startswith("[") and token.endswith("]")):
        return token
    if token.startswith(BLANK) and token != BLANK:
        return token.removeprefix(BLANK)
    return f"##{token}"
