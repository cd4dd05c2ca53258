"""From logits to token ids, for a batch whose rows have their own parameters.

Every row's result depends on that row alone: its logits, its parameters and its (seed, position).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

import torch

from pagemesh.errors import InternalError, PagemeshError
from pagemesh.sampling.logit_edits import apply_rules, forbid
from pagemesh.sampling.logit_rules import LogitRules
from pagemesh.sampling.logprobs import TokenLogprobs
from pagemesh.sampling.masking import apply_constraints
from pagemesh.sampling.params import SamplingParams
from pagemesh.sampling.randomness import uniform_draws
from pagemesh.sampling.scoring import score_tokens
from pagemesh.sampling.structured.constraint import TokenConstraint

_NOT_FINITE: Final = ("LOGITS_NOT_FINITE", "the model gave logits that are not finite for")
_NOTHING_LEFT: Final = ("NO_TOKEN_ALLOWED", "the sampling parameters forbid every token for")

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
    rules: LogitRules | None = None
    """What else changes the logits, if anything does."""
    constraint: TokenConstraint | None = None
    """What may be chosen at all; the suppressed tokens may then be chosen where nothing else may."""


class Samples(NamedTuple):
    """What was sampled."""

    token_ids: list[int]
    """One per row; without meaning for the requests in `errors`."""

    logprobs: dict[str, TokenLogprobs]
    """By request id, for the rows that ask for them."""

    errors: dict[str, PagemeshError]
    """By request id: rows from which nothing can be sampled."""


def sample(logits: torch.Tensor, rows: Sequence[SampledRow]) -> Samples:
    """One token for each row of logits [R, vocab], which may be overwritten.

    In vLLM's order (v1/sample/sampler.py): log probabilities of the logits as they are, then biases,
    penalties and what is forbidden, then temperature, min-p, top-k and top-p.
    """
    logits = logits.float()
    best, best_ids = logits.max(dim=-1)
    # The maximum of a row with a NaN is NaN, so that one value per row tells of the whole row.
    errors = not_finite_errors([row.request_id for row in rows], best)
    scored = [index for index, row in enumerate(rows) if row.params.logprobs is not None]
    raw = logits[scored] if scored else logits
    edited = [
        index
        for index, row in enumerate(rows)
        if row.rules is not None or row.constraint is not None or row.suppressed_token_ids
    ]
    token_ids: list[int] = best_ids.tolist()
    if edited:
        refused = _edit(logits, rows, edited)
        best, best_ids = (logits if len(edited) == len(rows) else logits[edited]).max(dim=-1)
        nothing_left = _errors([rows[i].request_id for i in edited], best, _NOTHING_LEFT)
        errors = nothing_left | refused | errors
        _put(token_ids, edited, best_ids.tolist())
    drawn = [i for i, row in enumerate(rows) if not row.params.greedy]
    if errors:
        drawn = [index for index in drawn if rows[index].request_id not in errors]
    if drawn:
        picked = logits if len(drawn) == len(rows) else logits[drawn]
        _put(token_ids, drawn, _draw(picked, [rows[index] for index in drawn]))
    logprobs = _score(raw, [rows[i] for i in scored], [token_ids[i] for i in scored])
    return Samples(token_ids, logprobs, errors)


def _edit(
    logits: torch.Tensor, rows: Sequence[SampledRow], edited: Sequence[int]
) -> dict[str, PagemeshError]:
    """Apply the rules and constraints of some rows; gives errors by request id."""
    apply_rules(
        logits,
        [(i, row.params, row.rules) for i in edited if (row := rows[i]).rules is not None],
    )
    forbid(logits, [(i, _forbidden(rows[i])) for i in edited])
    constrained = [
        (i, row.constraint, row.suppressed_token_ids)
        for i in edited
        if (row := rows[i]).constraint is not None
    ]
    errors = apply_constraints(logits, constrained) if constrained else {}
    return {rows[index].request_id: error for index, error in errors.items()}


def _forbidden(row: SampledRow) -> Sequence[int]:
    suppressed = row.suppressed_token_ids if row.constraint is None else ()
    if row.rules is None or row.rules.bad_words is None:
        return suppressed
    return (*suppressed, *row.rules.bad_words.forbidden_ids)


def _put(token_ids: list[int], indices: Sequence[int], values: Sequence[int]) -> None:
    for index, token_id in zip(indices, values, strict=True):
        token_ids[index] = token_id


def not_finite_errors(request_ids: Sequence[str], best: torch.Tensor) -> dict[str, PagemeshError]:
    """Errors by request id for rows of logits whose maximum [R] is not finite."""
    return _errors(request_ids, best, _NOT_FINITE)


def _errors(
    request_ids: Sequence[str], best: torch.Tensor, failure: tuple[str, str]
) -> dict[str, PagemeshError]:
    reason, message = failure
    return {
        request_id: InternalError(f"{message} {request_id}", reason=reason)
        for request_id, value in zip(request_ids, best.tolist(), strict=True)
        if not math.isfinite(value)
    }


def _score(
    logits: torch.Tensor, rows: Sequence[SampledRow], token_ids: Sequence[int]
) -> dict[str, TokenLogprobs]:
    if not rows:
        return {}
    scores = score_tokens(logits, token_ids, [row.params.logprobs or 0 for row in rows])
    return {row.request_id: score for row, score in zip(rows, scores, strict=True)}


def _draw(logits: torch.Tensor, rows: Sequence[SampledRow]) -> list[int]:
    """Temperature, min-p, top-k, top-p, then one draw by the inverse of the distribution function.

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
    _keep_min_p(weights, [p.min_p for p in params])
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
