"""Turns one answer's tokens into text, piece by piece: never a part of a character, nor of a stop string.

The pieces of all calls together equal the decoded whole. Each id is decoded a bounded number of times,
so the cost is linear in the output. (The idea of decoding a small window against its own beginning is
that of Hugging Face's text-generation-inference.) Where a text is the bytes of its tokens in a row, a table and a
UTF-8 decoder do.

Stop strings are looked for character by character with one Knuth-Morris-Pratt automaton each, so the
result does not depend on how the text is cut into pieces, and the cost is linear.
"""

from __future__ import annotations

import codecs
from collections.abc import Iterable, Sequence
from typing import NamedTuple, Protocol

from pagemesh.tokenizer.thought_span import SplitText, ThoughtMarks, ThoughtSpan
from pagemesh.tokenizer.tokenizer import ByteTokens, Tokenizer


class TokenPlace(NamedTuple):
    """Where a token's text is in an answer's, in characters. A stop string may have cut the answer off before it."""

    start: int
    """Characters before it; those that a token only ends are not."""

    end: int
    """Where its last character ends; the start of a token without text."""


class TextPiece(NamedTuple):
    """What became of some tokens."""

    text: str
    """New text; may be empty while a character or a stop string may be incomplete."""

    num_tokens: int
    """How many of the ids belong to the answer: all of them, unless a stop string came before the last."""

    stop_string: str | None = None
    """The stop string that ended the answer; nothing may be added after it."""

    places: tuple[TokenPlace, ...] = ()
    """Of each of the ids that belong to the answer, where they are told."""


class AnswerText:
    """The text side of one answer."""

    def __init__(
        self,
        tokenizer: Tokenizer,
        stop: Sequence[str],
        min_tokens: int,
        *,
        includes_stop: bool = False,
        hidden_token_ids: frozenset[int] | None = None,
        thought_marks: ThoughtMarks | None = None,
        prompt_token_ids: Sequence[int] = (),
        tells_places: bool = False,
    ) -> None:
        """Stop strings, which are not empty, are sought in what follows the first `min_tokens` tokens.

        They are those of the answer: none is sought in its thoughts, where these have marks.

        As in vLLM, they and stop tokens have no text unless it `includes_stop`. Nor have the hidden tokens,
        which are the special ones unless told. With `tells_places`, it is told where each token's text is.
        """
        hidden = tokenizer.special_token_ids if hidden_token_ids is None else hidden_token_ids
        self._detokenizer = make_detokenizer(tokenizer, hidden, prompt_token_ids)
        self._hidden = hidden
        self._tells_places = tells_places
        self._num_chars = 0
        self._includes_stop = includes_stop
        self._stops = StopMatcher(stop)
        self._has_stops = bool(stop)
        self._thoughts = None if thought_marks is None else ThoughtSpan(thought_marks)
        self._min_tokens = min_tokens
        self.num_tokens = 0
        """Tokens so far, those of stop tokens and stop strings included."""

    def push(
        self, token_ids: Sequence[int], *, ended: bool = False, stop_token: bool = False
    ) -> TextPiece:
        """Add ids, the last ones when `ended`; with `stop_token`, the very last of them is one."""
        with_text = token_ids[:-1] if stop_token and not self._includes_stop else token_ids
        if not self._has_stops and not self._tells_places:
            self.num_tokens += len(token_ids)
            text = self._detokenizer.push(with_text)
            return TextPiece(text + self._detokenizer.flush() if ended else text, len(token_ids))
        text = ""
        places: list[TokenPlace] = []
        for position, token_id in enumerate(with_text, start=1):
            self.num_tokens += 1
            piece = self._detokenizer.push([token_id])
            if self._tells_places:
                places.append(self._place(token_id, piece))
            thoughts, piece = self._split(piece)
            text += thoughts
            if self.num_tokens <= self._min_tokens:
                text += piece
                continue
            found = self._stops.push(piece)
            text += found.text
            if found.stop is not None:
                shown = text + self._shown(found.stop)
                return TextPiece(shown, position, found.stop, tuple(places))
        if len(with_text) < len(token_ids):
            self.num_tokens += 1
            if self._tells_places:
                places.append(TokenPlace(self._num_chars, self._num_chars))
        if not ended:
            return TextPiece(text, len(token_ids), places=tuple(places))
        thoughts, piece = self._split(self._detokenizer.flush())
        found = self._stops.push(piece + (self._thoughts.flush() if self._thoughts else ""))
        rest = self._stops.flush() if found.stop is None else self._shown(found.stop)
        text += thoughts + found.text + rest
        return TextPiece(text, len(token_ids), found.stop, tuple(places))

    def _split(self, text: str) -> SplitText:
        """Text as what is thoughts and what is not."""
        return SplitText("", text) if self._thoughts is None else self._thoughts.push(text)

    def _place(self, token_id: int, piece: str) -> TokenPlace:
        """Where the text of a token is that has just been pushed, and made this piece certain."""
        start = self._num_chars
        self._num_chars += len(piece)
        is_within = self._detokenizer.is_within and token_id not in self._hidden
        return TokenPlace(start, self._num_chars + is_within)

    def _shown(self, stop: str) -> str:
        return stop if self._includes_stop else ""


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


class StopResult(NamedTuple):
    """What became of a piece of text."""

    text: str
    """Text that can be given out."""

    stop: str | None
    """The stop string that is complete; the text before it has been given out, nothing will follow."""


class StopMatcher:
    """The stop strings of one generated sequence. The one that is complete first wins."""

    def __init__(self, stops: Sequence[str]) -> None:
        """`stops` are non-empty strings; none at all is fine."""
        self._automata = [_Automaton(stop) for stop in stops]
        self._held = ""

    def push(self, piece: str) -> StopResult:
        """Add text; holds back an end that may turn out to be the beginning of a stop string."""
        if not self._automata:
            return StopResult(piece, None)
        text = self._held + piece
        for index, char in enumerate(piece, start=len(self._held) + 1):
            # Of stop strings that end at the same place, the longest began first.
            complete = [a.stop for a in self._automata if a.feed(char)]
            if complete:
                self._held = ""
                stop = max(complete, key=len)
                return StopResult(text[: index - len(stop)], stop)
        num_certain = len(text) - max(automaton.num_matched for automaton in self._automata)
        self._held = text[num_certain:]
        return StopResult(text[:num_certain], None)

    def flush(self) -> str:
        """The text held back, when no more will come."""
        held, self._held = self._held, ""
        return held


class _Automaton:
    """Matches one stop string."""

    def __init__(self, stop: str) -> None:
        self.stop = stop
        self.num_matched = 0
        # fallback[n]: longest proper prefix of the stop string that ends its first n characters.
        self._fallback = [0] * (len(stop) + 1)
        length = 0
        for index in range(1, len(stop)):
            length = self._advance(length, stop[index])
            self._fallback[index + 1] = length

    def feed(self, char: str) -> bool:
        """Read one character; true when the stop string ends with it."""
        self.num_matched = self._advance(self.num_matched, char)
        return self.num_matched == len(self.stop)

    def _advance(self, num_matched: int, char: str) -> int:
        while num_matched and self.stop[num_matched] != char:
            num_matched = self._fallback[num_matched]
        return num_matched + 1 if self.stop[num_matched] == char else 0
