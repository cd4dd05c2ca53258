"""One choice's tokens as what the client is told about them."""

from __future__ import annotations

from collections.abc import Sequence

from pagemesh.router.generation.request import ChoiceDelta, StopReason
from pagemesh.tokenizer.answer_text import AnswerText
from pagemesh.tokenizer.tokenizer import Tokenizer


class ChoiceText:
    """The text side of one choice."""

    def __init__(
        self, index: int, tokenizer: Tokenizer, stop: Sequence[str], min_tokens: int
    ) -> None:
        self._index = index
        self._text = AnswerText(tokenizer, stop, min_tokens)

    @property
    def num_tokens(self) -> int:
        """Tokens so far, those of stop tokens and stop strings included."""
        return self._text.num_tokens

    def push(self, token_ids: tuple[int, ...], ended: StopReason | None) -> ChoiceDelta:
        """Add what the worker sent; after a delta with a stop reason nothing may be added."""
        piece = self._text.push(
            token_ids, ended=ended is not None, stop_token=ended is StopReason.STOP
        )
        return ChoiceDelta(
            self._index,
            piece.text,
            token_ids[: piece.num_tokens],
            ended if piece.stop_string is None else StopReason.STOP,
        )
