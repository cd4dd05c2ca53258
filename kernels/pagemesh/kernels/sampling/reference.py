"""The plain definition: what is chosen of rows of float32 logits that are edited already."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt
import torch

_LIKELY_TOKENS: Final = 512
"""Nucleus sampling looks at this many most likely tokens first; rarely must it sort the rest."""


class DrawParameters(NamedTuple):
    """What is asked of each row."""

    temperatures: Sequence[float]
    """Above 0."""

    top_ks: Sequence[int]
    """0 and less keep all."""

    min_ps: Sequence[float]
    top_ps: Sequence[float]

    draws: npt.NDArray[np.float64]
    """Numbers in [0, 1)."""


def draw_tokens(logits: torch.Tensor, parameters: DrawParameters) -> list[int]:
    """Temperature, top-k, min-p, top-p, then one draw by the inverse of the distribution function.

    Of logits [R, vocab], each row of which has a finite maximum. In float64 and in order of token ids:
    rounding then moves a boundary between two tokens by 1e-16, and equal logits never make the outcome
    depend on how a sort breaks ties.
    """
    device = logits.device
    temperatures = torch.tensor(parameters.temperatures, dtype=torch.float64, device=device)
    scores = logits.double()
    scores = (scores - scores.amax(-1, keepdim=True)) / temperatures[:, None]
    _keep_top_k(scores, parameters.top_ks)
    weights = scores.exp_()
    _keep_min_p(weights, parameters.min_ps)
    _keep_top_p(weights, parameters.top_ps)
    sums = weights.cumsum(-1)
    # draw < 1 and sums[-1] >= 1 keep the product below the sum, also after rounding.
    targets = torch.from_numpy(parameters.draws).to(device)[:, None] * sums[:, -1:]
    token_ids: list[int] = torch.searchsorted(sums, targets, right=True)[:, 0].tolist()
    return token_ids


def _keep_top_k(scores: torch.Tensor, top_ks: Sequence[int]) -> None:
    """Set all but the k highest scores of each row to -inf; those equal to the k-th stay."""
    limited = [index for index, k in enumerate(top_ks) if 0 < k < scores.shape[-1]]
    if not limited:
        return
    rows = scores[limited]
    ks = torch.tensor([[top_ks[index]] for index in limited], device=scores.device)
    kth_highest = rows.topk(int(ks.max()), dim=-1).values.gather(1, ks - 1)
    scores[limited] = rows.masked_fill_(rows < kth_highest, -math.inf)


def _keep_min_p(weights: torch.Tensor, min_ps: Sequence[float]) -> None:
    """Zero the tokens less likely than min-p times the likeliest, whose weight is 1.

    Nguyen et al. 2024, "Turning Up the Heat" (https://arxiv.org/abs/2407.01082). Behind top-k, which
    it commutes with: both keep a row's likeliest tokens.
    """
    limited = [index for index, min_p in enumerate(min_ps) if min_p > 0.0]
    if limited:
        rows = weights[limited]
        least = torch.tensor([[min_ps[index]] for index in limited], dtype=torch.float64)
        weights[limited] = rows.masked_fill_(rows < least.to(weights.device), 0.0)


def _keep_top_p(weights: torch.Tensor, top_ps: Sequence[float]) -> None:
    """Zero all but the likeliest tokens that together reach the mass p; those equal to the last stay."""
    limited = [index for index, top_p in enumerate(top_ps) if top_p < 1.0]
    if not limited:
        return
    rows = weights[limited]
    mass = torch.tensor(
        [[top_ps[index]] for index in limited], dtype=torch.float64, device=weights.device
    )
    last_kept = _nucleus_threshold(rows, mass * rows.sum(-1, keepdim=True))
    weights[limited] = rows.masked_fill_(rows < last_kept, 0.0)


def _nucleus_threshold(weights: torch.Tensor, mass: torch.Tensor) -> torch.Tensor:
    """Least weight kept in each row, [R, 1]: the last one before which less than `mass` was gathered."""
    vocab_size = weights.shape[-1]
    for num_likeliest in (min(_LIKELY_TOKENS, vocab_size), vocab_size):
        likeliest = weights.topk(num_likeliest, dim=-1).values
        before = likeliest.cumsum(-1) - likeliest
        num_kept = (before < mass).sum(-1, keepdim=True)
        if int(num_kept.max()) < num_likeliest:
            break
    return likeliest.gather(1, num_kept - 1)
