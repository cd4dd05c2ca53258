"""Log probabilities of given tokens under rows of logits."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from pagemesh.sampling.logprobs import TokenLogprobs

_LOW_BITS = 32


def score_tokens(
    logits: torch.Tensor, token_ids: Sequence[int], num_top: Sequence[int]
) -> list[TokenLogprobs]:
    """One per row of float32 logits [R, vocab], of which all are finite or -inf.

    `num_top` says how many of the likeliest tokens are named for each row.
    """
    chosen = logits.gather(1, torch.tensor(token_ids, device=logits.device)[:, None])
    norms = logits.logsumexp(-1, keepdim=True)
    ranks = (logits >= chosen).sum(-1).tolist()
    logprobs = (chosen - norms)[:, 0].tolist()
    top_ids, top_logprobs = _likeliest(logits, norms, max(num_top, default=0))
    return [
        TokenLogprobs(token_id, logprob, rank, tuple(ids[:count]), tuple(values[:count]))
        for token_id, logprob, rank, ids, values, count in zip(
            token_ids, logprobs, ranks, top_ids, top_logprobs, num_top, strict=True
        )
    ]


def _likeliest(
    logits: torch.Tensor, norms: torch.Tensor, count: int
) -> tuple[list[list[int]], list[list[float]]]:
    """Ids and log probabilities of the likeliest tokens of each row, of equal ones the lower ids first.

    Equal logits are common in bfloat16, and topk takes any of them, which may depend on how many are
    asked for; so it is given numbers that are all different: the bits of the logit, then the id.
    """
    count = min(count, logits.shape[-1])
    if not count:
        return [[]] * len(logits), [[]] * len(logits)
    bits = (logits + 0.0).view(torch.int32)  # -0.0 becomes 0.0, its equal
    ascending = torch.where(bits < 0, bits ^ 0x7FFFFFFF, bits).long()
    ids = torch.arange(logits.shape[-1], device=logits.device)
    keys = (ascending << _LOW_BITS) - ids
    top_ids = (-keys.topk(count, dim=-1).values) & ((1 << _LOW_BITS) - 1)
    return top_ids.tolist(), (logits.gather(1, top_ids) - norms).tolist()
