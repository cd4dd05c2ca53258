"""From logits to token ids by torch, on the host or a device that it waits for."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch

from pagemesh.errors import PagemeshError
from pagemesh.kernels.arg_max import arg_max
from pagemesh.kernels.logprobs import score_rows
from pagemesh.kernels.sampling import DrawParameters, draw_tokens
from pagemesh.kernels.sampling.interface import uniform_draws
from pagemesh.sampling.logit_edits import apply_rules, forbid
from pagemesh.sampling.logprobs import TokenLogprobs
from pagemesh.sampling.masking import apply_constraints
from pagemesh.sampling.plan import (
    SampledRow,
    Samples,
    Scores,
    forbidden_ids,
    is_edited,
    not_finite_error,
    nothing_left_error,
)
from pagemesh.sampling.scoring import score_tokens, to_logprobs


class HostSampler:
    """`Sampler` that has chosen when `launch` returns."""

    def launch(self, logits: torch.Tensor, rows: Sequence[SampledRow]) -> HostSamples:
        return HostSamples(sample(logits, rows))

    def score(self, logits: torch.Tensor, token_ids: Sequence[int], num_top: int) -> HostScores:
        scores = score_rows(logits.float(), torch.tensor(token_ids), num_top)
        logprobs = to_logprobs(scores, token_ids, [num_top] * len(token_ids))
        return HostScores(Scores(logprobs, bool(scores.norms.isfinite().all())))


class HostSamples:
    """`PendingSamples` that are there already."""

    def __init__(self, samples: Samples) -> None:
        self._samples = samples

    @property
    def token_ids(self) -> torch.Tensor:
        return torch.tensor(self._samples.token_ids, dtype=torch.int64)

    def read(self) -> Samples:
        return self._samples


class HostScores:
    """`PendingScores` that are there already."""

    def __init__(self, scores: Scores) -> None:
        self._scores = scores

    def read(self) -> Scores:
        return self._scores


def sample(logits: torch.Tensor, rows: Sequence[SampledRow]) -> Samples:
    """One token for each row of logits [R, vocab], which may be overwritten; see `Sampler`."""
    best, best_ids = arg_max(logits)
    # The maximum of a row with a NaN is NaN, so that one value per row tells of the whole row.
    errors = _errors(rows, best, lambda row: not_finite_error(row.request_id))
    token_ids: list[int] = best_ids.tolist()
    scored = [index for index, row in enumerate(rows) if row.params.logprobs is not None]
    edited = [index for index, row in enumerate(rows) if is_edited(row)]
    drawn = [i for i, row in enumerate(rows) if not row.params.greedy]
    if not (scored or edited or drawn):
        return Samples(token_ids, {}, errors)
    logits = logits.float()
    raw = logits[scored] if scored else logits
    if edited:
        refused = _edit(logits, rows, edited)
        best, best_ids = arg_max(logits if len(edited) == len(rows) else logits[edited])
        nothing_left = _errors([rows[i] for i in edited], best, nothing_left_error)
        errors = nothing_left | refused | errors
        _put(token_ids, edited, best_ids.tolist())
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
    forbid(logits, [(i, forbidden_ids(rows[i])) for i in edited])
    constrained = [
        (i, row.constraint, row.suppressed_token_ids)
        for i in edited
        if (row := rows[i]).constraint is not None
    ]
    errors = apply_constraints(logits, constrained) if constrained else {}
    return {rows[index].request_id: error for index, error in errors.items()}


def _put(token_ids: list[int], indices: Sequence[int], values: Sequence[int]) -> None:
    for index, token_id in zip(indices, values, strict=True):
        token_ids[index] = token_id


def _errors(
    rows: Sequence[SampledRow], best: torch.Tensor, error: Callable[[SampledRow], PagemeshError]
) -> dict[str, PagemeshError]:
    """Errors by request id for rows whose maximum [R] is not finite."""
    return {
        row.request_id: error(row)
        for row, value in zip(rows, best.tolist(), strict=True)
        if not math.isfinite(value)
    }


def _draw(logits: torch.Tensor, rows: Sequence[SampledRow]) -> list[int]:
    params = [row.params for row in rows]
    parameters = DrawParameters(
        [p.temperature for p in params],
        [p.top_k for p in params],
        [p.min_p for p in params],
        [p.top_p for p in params],
        uniform_draws([p.seed for p in params], [row.position for row in rows]),
    )
    return draw_tokens(logits, parameters)


def _score(
    logits: torch.Tensor, rows: Sequence[SampledRow], token_ids: Sequence[int]
) -> dict[str, TokenLogprobs]:
    if not rows:
        return {}
    scores = score_tokens(logits, token_ids, [row.params.logprobs or 0 for row in rows])
    return {row.request_id: score for row, score in zip(rows, scores, strict=True)}
