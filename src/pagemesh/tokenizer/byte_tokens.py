"""The bytes of tokens, for tokenizers whose texts are nothing but the bytes of their tokens in a row.

Such are those with byte-level BPE (GPT-2, Llama 3, Qwen, the demo model): a text can grow by a table and a UTF-8
decoder. All others (SentencePiece, WordPiece) decode a token otherwise at the beginning of a text than within it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any, Self

import tokenizers

_PRINTABLE = [*range(33, 127), *range(161, 173), *range(174, 256)]
_OTHERS = [byte for byte in range(256) if byte not in _PRINTABLE]
# GPT-2's alphabet: printable characters stand for themselves, other bytes for those from U+0100 on.
_BYTES = {chr(byte): byte for byte in _PRINTABLE} | {
    chr(256 + index): byte for index, byte in enumerate(_OTHERS)
}
_FALLBACK = re.compile("<0x([0-9A-F]{2})>")


class ByteTokens:
    """A table that fills as it is used."""

    def __init__(self, id_to_token: Callable[[int], str | None]) -> None:
        self._id_to_token = id_to_token
        self._known: dict[int, bytes] = {}

    @classmethod
    def of(cls, library: tokenizers.Tokenizer) -> Self | None:
        """The table of a tokenizer; None where texts are more than that."""
        return cls(library.id_to_token) if _decoder_types(library) == ["ByteLevel"] else None

    def __getitem__(self, token_id: int) -> bytes:
        """The bytes of a token; none for an id that the vocabulary does not have."""
        known = self._known.get(token_id)
        if known is None:
            known = self._known[token_id] = self._read(token_id)
        return known

    def _read(self, token_id: int) -> bytes:
        token = self._id_to_token(token_id) or ""
        try:
            return bytes(_BYTES[char] for char in token)
        # An added token is written as it is.
        except KeyError:
            return token.encode()


def has_byte_fallback(library: tokenizers.Tokenizer) -> bool:
    """Whether tokens such as `<0xF0>` stand for bytes of which other tokens have no text."""
    return "ByteFallback" in _decoder_types(library)


def fallback_byte(token: str) -> bytes | None:
    """The byte for which such a token stands; None for all others."""
    found = _FALLBACK.fullmatch(token)
    return None if found is None else bytes.fromhex(found[1])


def _decoder_types(library: tokenizers.Tokenizer) -> list[str]:
    if library.decoder is None:
        return []
    decoder: Any = json.loads(library.decoder.__getstate__())
    parts = decoder["decoders"] if decoder["type"] == "Sequence" else [decoder]
    return [part["type"] for part in parts]
