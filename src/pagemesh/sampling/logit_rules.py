"""What the logits of one request are changed by before a token is chosen. Plain data, no torch."""

from __future__ import annotations

from array import array
from collections.abc import Sequence

from pagemesh.sampling.bad_words import BadWords
from pagemesh.sampling.params import SamplingParams
from pagemesh.sampling.token_history import TokenHistory


class LogitRules:
    """The rules of one request, told of every token of its output; they depend on its tokens alone.

    Requests without such parameters have none and cost nothing: see `make_logit_rules`.
    """

    def __init__(
        self,
        params: SamplingParams,
        prompt_token_ids: Sequence[int],
        output_token_ids: Sequence[int],
    ) -> None:
        self.bias_ids = array("q", params.logit_bias)
        """Tokens with a bias, int64."""
        self.biases = array("f", params.logit_bias.values())
        """Their biases, float32."""
        self.allowed_ids: array[int] | None = None
        """The only tokens that may be sampled, distinct, int64; None allows all."""
        if params.allowed_token_ids is not None:
            self.allowed_ids = array("q", dict.fromkeys(params.allowed_token_ids))
        self.bad_words: BadWords | None = None
        if params.bad_words_token_ids:
            self.bad_words = BadWords(params.bad_words_token_ids, output_token_ids)
        self.history: TokenHistory | None = None
        """Set when there are penalties."""
        if _has_penalties(params):
            # Only the repetition penalty looks at the prompt.
            prompt = prompt_token_ids if params.repetition_penalty != 1.0 else ()
            self.history = TokenHistory(prompt, output_token_ids)

    def add(self, token_id: int) -> None:
        """Note the output's next token."""
        if self.history is not None:
            self.history.add(token_id)
        if self.bad_words is not None:
            self.bad_words.add(token_id)


def make_logit_rules(
    params: SamplingParams, prompt_token_ids: Sequence[int], output_token_ids: Sequence[int]
) -> LogitRules | None:
    """The rules of a request whose output so far is `output_token_ids`; None when it has none."""
    has_rules = (
        _has_penalties(params)
        or bool(params.logit_bias)
        or bool(params.bad_words_token_ids)
        or params.allowed_token_ids is not None
    )
    return LogitRules(params, prompt_token_ids, output_token_ids) if has_rules else None


def _has_penalties(params: SamplingParams) -> bool:
    return (
        params.repetition_penalty != 1.0
        or params.presence_penalty != 0.0
        or params.frequency_penalty != 0.0
    )
