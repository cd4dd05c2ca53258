"""What scoring tokens takes and gives, whoever computes it."""

from __future__ import annotations

from typing import Final, NamedTuple, Protocol

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
