"""What changes the logits of one request before a token is chosen: biases, penalties, bad words. No torch."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence

from pagemesh.sampling.params import SamplingParams


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


class BadWords:
    """Forbidden sequences of one request against the end of its output; the prompt does not count.

    A step looks only at sequences that continue the very last token.
    """

    def __init__(self, words: Iterable[Sequence[int]], output_token_ids: Sequence[int]) -> None:
        sequences = [tuple(word) for word in words]
        self._always = tuple(dict.fromkeys(word[0] for word in sequences if len(word) == 1))
        self._by_last: dict[int, list[tuple[int, ...]]] = {}
        for word in sequences:
            if len(word) > 1:
                self._by_last.setdefault(word[-2], []).append(word)
        self._num_kept = max(map(len, sequences), default=1) - 1
        self._tail: tuple[int, ...] = ()
        for token_id in output_token_ids[max(0, len(output_token_ids) - self._num_kept) :]:
            self.add(token_id)

    def add(self, token_id: int) -> None:
        """Note the output's next token."""
        if self._num_kept:
            self._tail = (*self._tail, token_id)[-self._num_kept :]

    @property
    def forbidden_ids(self) -> tuple[int, ...]:
        """Tokens that would complete a sequence now."""
        candidates = self._by_last.get(self._tail[-1], ()) if self._tail else ()
        completing = [
            word[-1] for word in candidates if self._tail[-(len(word) - 1) :] == word[:-1]
        ]
        return (*self._always, *completing)


class TokenHistory:
    """Distinct tokens of a prompt and of the output behind it, and how often the output has them, for penalties.

    In flat arrays that grow by at most one entry per generated token: a step makes tensors of them by copying memory,
    and never walks the tokens again.
    """

    def __init__(self, prompt_token_ids: Iterable[int], output_token_ids: Iterable[int]) -> None:
        self.seen_ids = array("q", dict.fromkeys(prompt_token_ids))
        """Distinct tokens of prompt and output, int64."""
        self.output_ids = array("q")
        """Distinct tokens of the output, int64."""
        self.output_counts = array("q")
        """How often each of them is in the output, int64."""
        self._seen = set(self.seen_ids)
        self._places: dict[int, int] = {}
        for token_id in output_token_ids:
            self.add(token_id)

    def add(self, token_id: int) -> None:
        """Count the output's next token."""
        if token_id not in self._seen:
            self._seen.add(token_id)
            self.seen_ids.append(token_id)
        place = self._places.setdefault(token_id, len(self.output_ids))
        if place == len(self.output_ids):
            self.output_ids.append(token_id)
            self.output_counts.append(0)
        self.output_counts[place] += 1
