"""What scoring tokens gives, and the plain definition."""

from __future__ import annotations

from typing import Final, NamedTuple, Protocol

import numpy as np
import torch

MAX_TOP: Final = 32
"""Most likeliest tokens of a row."""


class TokenScores(NamedTuple):
    """Scores of S rows, each with the same number n of likeliest tokens."""

    norms: torch.Tensor
    """Log of the sum of the exponentials, float32 [S]; not finite where a logit is NaN or infinite, or all
    are -inf. What the other parts say of such a row has no meaning."""

    logprobs: torch.Tensor
    """Log probability of the row's token, float32 [S]."""

    ranks: torch.Tensor
    """Tokens that are at least as likely, itself included, int32 [S]."""

    top_ids: torch.Tensor
    """The likeliest tokens, likeliest first, of equal ones the lower id, int32 [S, n]."""

    top_logprobs: torch.Tensor
    """Their log probabilities, float32 [S, n]."""


class TokenScorer(Protocol):
    """Log probabilities of tokens under rows of logits [R, vocab]: those of the softmax in float32."""

    def __call__(
        self,
        logits: torch.Tensor,
        rows: torch.Tensor,
        token_ids: torch.Tensor,
        scores: TokenScores,
    ) -> None:
        """Score `token_ids[row]`, int64 [R], for each of `rows`, int32 [S]; writes `scores`."""
        ...


def check_scores(
    logits: torch.Tensor, rows: torch.Tensor, token_ids: torch.Tensor, scores: TokenScores
) -> None:
    """Raise ValueError unless all fit each other."""
    num_rows, num_top = scores.top_ids.shape
    vocab_size = logits.shape[-1]
    fits = (
        logits.ndim == 2
        and logits.stride(1) == 1
        and token_ids.shape == logits.shape[:1]
        and rows.shape == (num_rows,)
        and scores.top_logprobs.shape == (num_rows, num_top)
        and all(part.shape == (num_rows,) for part in scores[:3])
        and all(part.is_contiguous() for part in (rows, token_ids, *scores))
        and all(part.device == logits.device for part in (rows, token_ids, *scores))
    )
    if not fits or num_top > min(MAX_TOP, vocab_size):
        raise ValueError(
            f"{num_rows} rows with {num_top} likeliest tokens of at most {min(MAX_TOP, vocab_size)}"
            f" do not fit logits {list(logits.shape)} with strides {list(logits.stride())} on"
            f" {logits.device} and tokens {list(token_ids.shape)}"
        )


_LOW_BITS: Final = 32


def score_rows(logits: torch.Tensor, token_ids: torch.Tensor, num_top: int) -> TokenScores:
    """Scores of a token for each row of float32 logits [R, vocab]; token ids int64 [R]."""
    chosen = logits.gather(1, token_ids[:, None])
    norms = _norms(logits)
    top_ids = _likeliest(logits, min(num_top, logits.shape[-1]))
    return TokenScores(
        norms[:, 0],
        (chosen - norms)[:, 0],
        (logits >= chosen).sum(-1, dtype=torch.int32),
        top_ids.int(),
        logits.gather(1, top_ids) - norms,
    )


def _norms(logits: torch.Tensor) -> torch.Tensor:
    """Log of the sum of each row's exponentials, [R, 1], the same bits for a row alone and among others.

    A long row that is alone torch adds up in parts, one for each thread; beside a second one it does not.
    """
    rows = logits.expand(2, -1) if len(logits) == 1 else logits
    return rows.logsumexp(-1, keepdim=True)[: len(logits)]


class PlainTokenScorer:
    """`TokenScorer` by the plain definition, on the host: has scored when it returns."""

    def __call__(
        self,
        logits: torch.Tensor,
        rows: torch.Tensor,
        token_ids: torch.Tensor,
        scores: TokenScores,
    ) -> None:
        if not np.array_equal(rows.numpy(), np.arange(len(logits))):
            logits, token_ids = logits.index_select(0, rows), token_ids.index_select(0, rows)
        found = score_rows(logits.float(), token_ids, scores.top_ids.shape[1])
        for part, values in zip(scores, found, strict=True):
            part.copy_(values)


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
