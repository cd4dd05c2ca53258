"""Log probabilities in the form that vLLM's users know: for every position, a mapping by token id."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from pagemesh.sampling.logprobs import TokenLogprobs
from pagemesh.tokenizer.tokenizer import Tokenizer, token_text


class Logprob(NamedTuple):
    """What the model thought of one token at one position."""

    logprob: float
    """Natural log probability."""

    rank: int
    """1 is the likeliest token."""

    decoded_token: str
    """The token's own text; special tokens have theirs."""


Position = dict[int, Logprob]
"""By token id: the token that stands there, and as many of the likeliest ones as were asked for."""


def read_logprobs(positions: Sequence[TokenLogprobs], tokenizer: Tokenizer) -> tuple[Position, ...]:
    """What the engine reported, with the tokens' texts."""
    return tuple(_read(position, tokenizer) for position in positions)


def _read(position: TokenLogprobs, tokenizer: Tokenizer) -> Position:
    found = {position.token_id: (position.logprob, position.rank)}
    top = zip(position.top_token_ids, position.top_logprobs, strict=True)
    for rank, (token_id, logprob) in enumerate(top, start=1):
        found.setdefault(token_id, (logprob, rank))
    return {
        token_id: Logprob(logprob, rank, token_text(tokenizer, token_id))
        for token_id, (logprob, rank) in found.items()
    }
