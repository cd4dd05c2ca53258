"""Log probabilities of given tokens under rows of logits, in plain numbers."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from pagemesh.kernels.logprobs import TokenScores, score_rows
from pagemesh.sampling.logprobs import TokenLogprobs


def score_tokens(
    logits: torch.Tensor, token_ids: Sequence[int], num_top: Sequence[int]
) -> list[TokenLogprobs]:
    """One per row of float32 logits [R, vocab], of which all are finite or -inf.

    `num_top` says how many of the likeliest tokens are named for each row.
    """
    scores = score_rows(
        logits, torch.tensor(token_ids, device=logits.device), max(num_top, default=0)
    )
    return to_logprobs(scores, token_ids, num_top)


def to_logprobs(
    scores: TokenScores, token_ids: Sequence[int], num_top: Sequence[int]
) -> list[TokenLogprobs]:
    """Scores of the tokens, which the host can read, with as many of the likeliest as asked for."""
    return [
        TokenLogprobs(token_id, logprob, rank, tuple(ids[:count]), tuple(values[:count]))
        for token_id, logprob, rank, ids, values, count in zip(
            token_ids,
            scores.logprobs.tolist(),
            scores.ranks.tolist(),
            scores.top_ids.tolist(),
            scores.top_logprobs.tolist(),
            num_top,
            strict=True,
        )
    ]
