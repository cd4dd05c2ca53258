"""What engine steps cost, learnt from every step: how long prompts take beside the decodes that run."""

from __future__ import annotations

from typing import Final, NamedTuple

from pagemesh.core.load import PrefillRate, num_pairs
from pagemesh.scheduler.batch import Batch
from pagemesh.scheduler.nonnegative_fit import NonNegativeFit

MEMORY: Final = 0.98
"""What a step still counts when the next of its kind is there: about the last fifty decide."""

SOLVE_EVERY: Final = 16
"""Steps of decodes alone that come together before they count: they are short, and many."""


class _Contents(NamedTuple):
    """What a batch computes."""

    num_prompt_tokens: int
    num_prompt_pairs: int
    num_decodes: int
    num_decode_pairs: int


class StepCosts:
    """Learns the costs of one engine's steps; belongs to the engine's thread.

    A step is `tokens * a + pairs * b + c`, and what its decodes cost beside that, which steps without
    prompts tell. How a step's seconds are measured is the loop's affair.
    """

    def __init__(self, max_num_batched_tokens: int) -> None:
        self._max_num_batched_tokens = max_num_batched_tokens
        # Quantities: tokens, pairs, steps.
        self._prompts = NonNegativeFit(3, MEMORY)
        self._decodes = NonNegativeFit(3, MEMORY, SOLVE_EVERY)
        self._prompt_tokens = 0.0
        self._prompt_pairs = 0.0
        self._pairs_per_decode = 0.0

    def observe(self, batch: Batch, seconds: float) -> None:
        """A batch was computed in so many seconds."""
        if seconds <= 0 or not batch.sequences:
            return
        tokens, pairs, num_decodes, decode_pairs = _contents_of(batch)
        if num_decodes:
            self._pairs_per_decode = decode_pairs / num_decodes
        if not tokens:
            self._decodes.observe((num_decodes, decode_pairs, 1.0), seconds)
            return
        self._prompt_tokens = MEMORY * self._prompt_tokens + tokens
        self._prompt_pairs = MEMORY * self._prompt_pairs + pairs
        decode_seconds = self._decodes.predict((num_decodes, decode_pairs, 0.0))
        if decode_seconds:
            # Noise must not leave nothing for the prompt: half of its share by tokens is its own.
            least = seconds * tokens / (tokens + num_decodes) / 2
            seconds = max(seconds - decode_seconds, least)
        else:
            # Until steps without prompts were seen, a decode is a token like others.
            tokens, pairs = tokens + num_decodes, pairs + decode_pairs
        self._prompts.observe((tokens, pairs, 1.0), seconds)

    def rate(self, num_decodes: int = 0) -> PrefillRate:
        """What prompts cost while so many decodes run."""
        if not self._prompt_tokens:
            return PrefillRate()
        per_token, per_pair, per_step = self._prompts.coefficients
        decode_pairs = num_decodes * self._pairs_per_decode
        return PrefillRate(
            per_token,
            per_pair,
            per_step + self._decodes.predict((num_decodes, decode_pairs, 0.0)),
            max(1, self._max_num_batched_tokens - num_decodes),
            self._prompt_pairs / self._prompt_tokens,
        )


def _contents_of(batch: Batch) -> _Contents:
    tokens = pairs = num_decodes = decode_pairs = 0
    for sequence in batch.sequences:
        num_tokens = len(sequence.token_ids)
        if num_tokens == 1:
            num_decodes += 1
            decode_pairs += sequence.start + 1
        else:
            tokens += num_tokens
            pairs += num_pairs(num_tokens, sequence.start)
    return _Contents(tokens, pairs, num_decodes, decode_pairs)
