"""Turns a growing list of token ids into text pieces that never split a character.

The pieces of all calls together equal the decoded whole. Each id is decoded a bounded number of times,
so the cost is linear in the output. (The idea of decoding a small window against its own beginning is
that of Hugging Face's text-generation-inference.)
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Protocol

from pagemesh.tokenizer.byte_detokenizer import ByteDetokenizer
from pagemesh.tokenizer.tokenizer import Tokenizer

_INCOMPLETE = "\ufffd"

_MAX_HELD_TOKENS = 8
"""More held tokens than this cannot all belong to one unfinished character."""

_NUM_PROMPT_TOKENS = 8
"""So many of a prompt's last tokens show what an answer follows."""

_MAX_CHARACTER_TOKENS = 3
"""An unfinished UTF-8 character has at most three bytes, and a token has at least one."""


class Detokenizer(Protocol):
    """The text side of one generated sequence."""

    def push(self, token_ids: Iterable[int]) -> str:
        """Add ids; gives the text that became certain, "" while a character is incomplete."""
        ...

    def flush(self) -> str:
        """The rest of the text, when no more ids will come."""
        ...

    @property
    def is_within(self) -> bool:
        """Whether a character has begun of which more ids may come."""
        ...


def make_detokenizer(
    tokenizer: Tokenizer,
    hidden_token_ids: frozenset[int] | None = None,
    prompt_token_ids: Sequence[int] = (),
) -> Detokenizer:
    """For one sequence, the quickest that gives the tokenizer's own text.

    `hidden_token_ids` have no text: the special tokens unless told. The text follows that of a prompt, so that
    a word with which it begins keeps its blank, as in vLLM.
    """
    hidden = tokenizer.special_token_ids if hidden_token_ids is None else hidden_token_ids
    table = tokenizer.byte_tokens
    if table is None:
        return WindowDetokenizer(tokenizer, hidden, prompt_token_ids)
    return ByteDetokenizer(table, hidden, tokenizer.vocab_size)


class WindowDetokenizer:
    """A `Detokenizer` for any tokenizer."""

    def __init__(
        self,
        tokenizer: Tokenizer,
        hidden_token_ids: frozenset[int],
        prompt_token_ids: Sequence[int] = (),
    ) -> None:
        """`hidden_token_ids` have no text; the text follows that of a prompt."""
        self._tokenizer = tokenizer
        self._hidden = hidden_token_ids
        # Tokens already turned into text, kept because decoders such as Metaspace treat the first
        # token of a text differently; then tokens whose text is still held back.
        self._context = self._visible(prompt_token_ids[-_NUM_PROMPT_TOKENS:])
        if self._decode(self._context).endswith(_INCOMPLETE):
            self._context = []
        self._held: list[int] = []

    def push(self, token_ids: Iterable[int]) -> str:
        self._held += self._visible(token_ids)
        if not self._held:
            return ""
        text = self._held_text(len(self._held))
        if not text.endswith(_INCOMPLETE):
            return self._emit(len(self._held), text)
        if len(self._held) > _MAX_HELD_TOKENS:
            return self._emit_certain(text)
        return ""

    def flush(self) -> str:
        if not self._held:
            return ""
        return self._emit(len(self._held), self._held_text(len(self._held)))

    @property
    def is_within(self) -> bool:
        return bool(self._held)

    def _visible(self, token_ids: Iterable[int]) -> list[int]:
        hidden, size = self._hidden, self._tokenizer.vocab_size
        return [i for i in token_ids if i not in hidden and i < size]

    def _held_text(self, num_tokens: int) -> str:
        """Text of the first held tokens, as it follows the context's."""
        context = self._decode(self._context)
        window = self._decode(self._context + self._held[:num_tokens])
        return window[len(context) :]

    def _decode(self, token_ids: list[int]) -> str:
        # Hidden ones are not among them.
        return self._tokenizer.decode(token_ids, skip_special_tokens=False)

    def _emit(self, num_tokens: int, text: str) -> str:
        """Turn the first held tokens into context; a context without text would be none."""
        emitted, self._held = self._held[:num_tokens], self._held[num_tokens:]
        self._context = emitted if text else self._context + emitted
        return text

    def _emit_certain(self, text: str) -> str:
        """Give out held text except for the last tokens, in which a character may be unfinished.

        A cut is right when both sides decode to the same text apart as together: it does not go
        through a character then.
        """
        for num_kept in range(1, _MAX_CHARACTER_TOKENS + 1):
            num_certain = len(self._held) - num_kept
            certain = self._held_text(num_certain)
            rest = self._decode(self._held[num_certain:])
            if certain + rest == text:
                return self._emit(num_certain, certain)
        return self._emit(len(self._held), text)
