"""One choice's tokens as what the client is told about them."""

from __future__ import annotations

from pagemesh.router.generation.request import ChoiceDelta, GenerationRequest, StopReason
from pagemesh.tokenizer.detokenizer import AnswerText
from pagemesh.tokenizer.tokenizer import Tokenizer


class ChoiceText:
    """The text side of one choice."""

    def __init__(self, index: int, tokenizer: Tokenizer, request: GenerationRequest) -> None:
        choice = request.choices[index]
        sampling = choice.sampling
        self._index = index
        self._stop_token_ids = sampling.stop_token_ids
        self._text = AnswerText(
            tokenizer,
            request.stop,
            sampling.min_tokens,
            includes_stop=request.includes_stop,
            hidden_token_ids=request.hidden_token_ids,
            thought_marks=request.thought_marks,
            prompt_token_ids=choice.prompt_token_ids,
            tells_places=sampling.logprobs is not None,
        )

    @property
    def num_tokens(self) -> int:
        """Tokens so far, those of stop tokens and stop strings included."""
        return self._text.num_tokens

    def push(self, token_ids: tuple[int, ...], ended: StopReason | None) -> ChoiceDelta:
        """Add what the worker sent; after a delta with a stop reason nothing may be added."""
        piece = self._text.push(
            token_ids, ended=ended is not None, stop_token=ended is StopReason.STOP
        )
        if piece.stop_string is not None:
            ended = StopReason.STOP
        stop_token_id = None
        if ended is StopReason.STOP and piece.stop_string is None:
            last = token_ids[-1]
            stop_token_id = last if last in self._stop_token_ids else None
        return ChoiceDelta(
            self._index,
            piece.text,
            token_ids[: piece.num_tokens],
            ended,
            piece.stop_string,
            stop_token_id,
            places=piece.places,
        )
