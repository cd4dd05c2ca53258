"""Detokenizing where a text is the bytes of its tokens in a row: a table and a UTF-8 decoder."""

from __future__ import annotations

import codecs
from collections.abc import Iterable

from pagemesh.tokenizer.byte_tokens import ByteTokens

_new_decoder = codecs.getincrementaldecoder("utf-8")


class ByteDetokenizer:
    """A `Detokenizer` for one generated sequence."""

    def __init__(
        self, table: ByteTokens, hidden_token_ids: frozenset[int], vocab_size: int
    ) -> None:
        """`hidden_token_ids` have no text, nor have ids from the vocabulary's size on."""
        self._table = table
        self._hidden = hidden_token_ids
        self._size = vocab_size
        self._decoder = _new_decoder("replace")

    def push(self, token_ids: Iterable[int]) -> str:
        hidden, size, table = self._hidden, self._size, self._table
        data = [table[i] for i in token_ids if i not in hidden and i < size]
        return self._decoder.decode(b"".join(data))

    def flush(self) -> str:
        return self._decoder.decode(b"", final=True)

    @property
    def is_within(self) -> bool:
        return bool(self._decoder.getstate()[0])
