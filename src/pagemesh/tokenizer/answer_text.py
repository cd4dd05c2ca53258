"""Turns one answer's tokens into text: detokenizing, stop tokens, stop strings."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from pagemesh.tokenizer.detokenizer import make_detokenizer
from pagemesh.tokenizer.stop_strings import StopMatcher
from pagemesh.tokenizer.thought_span import SplitText, ThoughtMarks, ThoughtSpan
from pagemesh.tokenizer.tokenizer import Tokenizer


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
