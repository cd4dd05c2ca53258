"""From logits to token ids, for a batch whose rows have their own parameters.

Every row's result depends on that row alone: its logits, its parameters and its (seed, position).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch

from pagemesh.errors import InternalError, PagemeshError
from pagemesh.sampling.params import SamplingParams
from pagemesh.sampling.randomness import uniform_draws

# Nucleus sampling looks at this many most likely tokens first; rarely must it sort the rest.
_LIKELY_TOKENS = 512


@dataclass(frozen=True, slots=True)
class SampledRow:
    """What one row of logits is sampled for."""

    request_id: str
    params: SamplingParams
    position: int
    """Index of the new token in the whole sequence, prompt included."""
    suppressed_token_ids: Sequence[int] = ()
    """Tokens that must not be chosen."""


class Samples(NamedTuple):
    """What was sampled."""

    token_ids: list[int]
    """One per row; without meaning for the requests in `errors`."""

    errors: dict[str, PagemeshError]
    """By request id: rows from which nothing can be sampled."""


def sample(logits: torch.Tensor, rows: Sequence[SampledRow]) -> Samples:
    """One token for each row of logits [R, vocab], which may be overwritten."""
    logits = logits.float()
    _suppress(logits, rows)
    best, best_ids = logits.max(dim=-1)
    # The maximum of a row with a NaN is NaN, so that one value per row tells of the whole row.
    errors = {
        row.request_id: _not_finite(row)
        for row, value in zip(rows, best.tolist(), strict=True)
        if not math.isfinite(value)
    }
    token_ids: list[int] = best_ids.tolist()
    drawn = [
        index
        for index, row in enumerate(rows)
        if not row.params.greedy and row.request_id not in errors
    ]
    if drawn:
        picked = logits if len(drawn) == len(rows) else logits[drawn]
        for index, token_id in zip(
            drawn, _draw(picked, [rows[index] for index in drawn]), strict=True
        ):
            token_ids[index] = token_id
    return Samples(token_ids, errors)


def _suppress(logits: torch.Tensor, rows: Sequence[SampledRow]) -> None:
    places = [
        (index, token_id) for index, row in enumerate(rows) for token_id in row.suppressed_token_ids
    ]
    if places:
        indices, token_ids = torch.tensor(places, device=logits.device).unbind(1)
        logits[indices, token_ids] = -math.inf


def _not_finite(row: SampledRow) -> PagemeshError:
    return InternalError(
        f"the model gave logits that are not finite for {row.request_id}",
        reason="LOGITS_NOT_FINITE",
    )


def _draw(logits: torch.Tensor, rows: Sequence[SampledRow]) -> list[int]:
    """Temperature, then top-k, then top-p, then one draw by the inverse of the distribution function.

    In float64 and in order of token ids: rounding then moves a boundary between two tokens by 1e-16,
    and equal logits never make the outcome depend on how a sort breaks ties.
    """
    device = logits.device
    params = [row.params for row in rows]
    temperatures = torch.tensor([p.temperature for p in params], dtype=torch.float64, device=device)
    scores = logits.double()
    scores = (scores - scores.amax(-1, keepdim=True)) / temperatures[:, None]
    _keep_top_k(scores, [p.top_k for p in params])
    weights = scores.exp_()
    _keep_top_p(weights, [p.top_p for p in params])
    sums = weights.cumsum(-1)
    draws = uniform_draws([p.seed for p in params], [row.position for row in rows])
    # draw < 1 and sums[-1] >= 1 keep the product below the sum, also after rounding.
    targets = torch.from_numpy(draws).to(device)[:, None] * sums[:, -1:]
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
