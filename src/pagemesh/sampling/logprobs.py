"""Log probabilities of one token and of its likeliest rivals, and the best of several answers. No torch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from pagemesh.sampling.params import MAX_LOGPROBS

TOP_SIZES: Final = (0, 5, MAX_LOGPROBS)
"""Likeliest tokens that a device looks for: a few numbers, since its kernels are compiled for each."""


class TokenLogprobs(NamedTuple):
    """What the model thought of a token, before any sampling parameter changed the distribution.

    The log probabilities are those of the softmax of the model's own logits (vLLM's `raw_logprobs`).
    """

    token_id: int
    """The token that stands at the position."""

    logprob: float
    """Its natural log probability."""

    rank: int
    """Tokens that are at least as likely, itself included; 1 is the likeliest."""

    top_token_ids: tuple[int, ...] = ()
    """As many of the likeliest tokens as were asked for, likeliest first, of equal ones the lower id."""

    top_logprobs: tuple[float, ...] = ()
    """Their log probabilities."""


def best_answers(cumulative_logprobs: Sequence[float], n: int) -> list[int]:
    """Indices of the `n` answers with the highest cumulative log probability, best first.

    As vLLM ranks them: by the sum and not by the mean, so that of equally probable tokens fewer are
    better. Of equal answers the earlier one comes first; all answers, when there are no more than `n`.
    """
    ranked = sorted(
        range(len(cumulative_logprobs)), key=cumulative_logprobs.__getitem__, reverse=True
    )
    return ranked[:n]
