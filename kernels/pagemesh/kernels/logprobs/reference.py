"""The plain definition."""

from __future__ import annotations

from typing import Final

import torch

from pagemesh.kernels.logprobs.interface import TokenScores

_LOW_BITS: Final = 32


def score_rows(logits: torch.Tensor, token_ids: torch.Tensor, num_top: int) -> TokenScores:
    """Scores of a token for each row of float32 logits [R, vocab]; token ids int64 [R]."""
    chosen = logits.gather(1, token_ids[:, None])
    norms = logits.logsumexp(-1, keepdim=True)
    top_ids = _likeliest(logits, min(num_top, logits.shape[-1]))
    return TokenScores(
        norms[:, 0],
        (chosen - norms)[:, 0],
        (logits >= chosen).sum(-1, dtype=torch.int32),
        top_ids.int(),
        logits.gather(1, top_ids) - norms,
    )


def _likeliest(logits: torch.Tensor, count: int) -> torch.Tensor:
    """Ids of the likeliest tokens of each row, int64 [R, count], of equal ones the lower ids first.

    Equal logits are common in bfloat16, and topk takes any of them, which may depend on how many are
    asked for; so it is given numbers that are all different: the bits of the logit, then the id.
    """
    if not count:
        return torch.empty(len(logits), 0, dtype=torch.int64, device=logits.device)
    bits = (logits + 0.0).view(torch.int32)  # -0.0 becomes 0.0, its equal
    ascending = torch.where(bits < 0, bits ^ 0x7FFFFFFF, bits).long()
    ids = torch.arange(logits.shape[-1], device=logits.device)
    keys = (ascending << _LOW_BITS) - ids
    return (-keys.topk(count, dim=-1).values) & ((1 << _LOW_BITS) - 1)
