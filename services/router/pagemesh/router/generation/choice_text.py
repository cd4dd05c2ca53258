"""Turns one sequence's tokens into text: detokenizing, stop tokens, stop strings."""

from __future__ import annotations

from collections.abc import Sequence

from pagemesh.router.generation.request import ChoiceDelta, StopReason
from pagemesh.tokenizer.detokenizer import IncrementalDetokenizer
from pagemesh.tokenizer.stop_strings import StopMatcher
from pagemesh.tokenizer.tokenizer import Tokenizer


class ChoiceText:
    """The text side of one choice."""

    def __init__(
        self, index: int, tokenizer: Tokenizer, stop: Sequence[str], min_tokens: int
    ) -> None:
        self._index = index
        self._detokenizer = IncrementalDetokenizer(tokenizer)
        self._stops = StopMatcher(stop)
        self._min_tokens = min_tokens
        self.num_tokens = 0
        """Tokens so far, those of stop tokens and stop strings included."""

    def push(self, token_ids: tuple[int, ...], ended: StopReason | None) -> ChoiceDelta:
        """Add what the worker sent; after a delta with a stop reason nothing may be added."""
        text = ""
        for position, token_id in enumerate(token_ids, start=1):
            self.num_tokens += 1
            is_stop_token = ended is StopReason.STOP and position == len(token_ids)
            # As in vLLM, a stop token has no text, and stop strings wait for min_tokens.
            piece = "" if is_stop_token else self._detokenizer.push([token_id])
            if self.num_tokens <= self._min_tokens:
                text += piece
                continue
            found = self._stops.push(piece)
            text += found.text
            if found.stopped:
                return ChoiceDelta(self._index, text, token_ids[:position], StopReason.STOP)
        if ended is not None:
            found = self._stops.push(self._detokenizer.flush())
            text += found.text
            if found.stopped:
                ended = StopReason.STOP
            else:
                text += self._stops.flush()
        return ChoiceDelta(self._index, text, token_ids, ended)
