"""Changes logits as the rules of their rows say, in place: biases, penalties, what may not be chosen.

Touches only the tokens that a rule names, except where only some tokens are allowed. The outcome is
that of vLLM's order (allowed tokens, bad words, min_tokens, bias, penalties): what is forbidden stays
at -inf whatever is added to it, so it may as well come last, where nothing can lift it again.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Sequence

import numpy as np
import torch

from pagemesh.sampling.logits_rules import LogitRules, TokenHistory
from pagemesh.sampling.params import SamplingParams

RowRules = tuple[int, SamplingParams, LogitRules]
"""Index of a row, its parameters and its rules."""


def apply_rules(logits: torch.Tensor, ruled: Sequence[RowRules]) -> None:
    """Biases, then penalties, then the allowed tokens, on logits float32 [R, vocab]."""
    biased = [(row, rules) for row, _, rules in ruled if rules.bias_ids]
    if biased:
        places = _places(logits, [(row, rules.bias_ids) for row, rules in biased])
        biases = np.concatenate([np.frombuffer(rules.biases, np.float32) for _, rules in biased])
        logits[places] += torch.from_numpy(biases).to(logits.device)
    penalised = [
        (row, params, rules.history) for row, params, rules in ruled if rules.history is not None
    ]
    if penalised:
        _penalise_repetition(logits, penalised)
        _penalise_output(logits, penalised)
    limited = [(row, rules.allowed_ids) for row, _, rules in ruled if rules.allowed_ids is not None]
    if limited:
        places = _places(logits, limited)
        kept = logits[places]
        logits[[row for row, _ in limited]] = -math.inf
        logits[places] = kept


def forbid(logits: torch.Tensor, forbidden: Sequence[tuple[int, Sequence[int]]]) -> None:
    """Set tokens of rows to -inf: pairs of a row's index and its token ids."""
    places = [(row, token_id) for row, token_ids in forbidden for token_id in token_ids]
    if places:
        rows, token_ids = torch.tensor(places, device=logits.device).unbind(1)
        logits[rows, token_ids] = -math.inf


_Penalised = Sequence[tuple[int, SamplingParams, TokenHistory]]


def _penalise_repetition(logits: torch.Tensor, penalised: _Penalised) -> None:
    """Keskar et al. 2019, "CTRL" (https://arxiv.org/abs/1909.05858), for both signs as in vLLM."""
    penalised = [each for each in penalised if each[1].repetition_penalty != 1.0]
    if not penalised:
        return
    places = _places(logits, [(row, history.seen_ids) for row, _, history in penalised])
    penalties = _spread(
        logits,
        [params.repetition_penalty for _, params, _ in penalised],
        [len(history.seen_ids) for _, _, history in penalised],
    )
    values = logits[places]
    # A penalty may be as small as the smallest number: what overflows is still a logit.
    logits[places] = torch.where(values > 0, values / penalties, values * penalties).clamp_(
        *_finite(logits)
    )


def _penalise_output(logits: torch.Tensor, penalised: _Penalised) -> None:
    penalised = [each for each in penalised if each[2].output_ids]
    if not penalised:
        return
    lengths = [len(history.output_ids) for _, _, history in penalised]
    places = _places(logits, [(row, history.output_ids) for row, _, history in penalised])
    frequency = _spread(logits, [p.frequency_penalty for _, p, _ in penalised], lengths)
    presence = _spread(logits, [p.presence_penalty for _, p, _ in penalised], lengths)
    counts = _joined([history.output_counts for _, _, history in penalised]).to(logits.device)
    logits[places] = logits[places] - frequency * counts - presence


def _places(
    logits: torch.Tensor, rows: Sequence[tuple[int, array[int]]]
) -> tuple[torch.Tensor, torch.Tensor]:
    """Indices of the rows' tokens, each place once, so that the order of writing does not matter."""
    lengths = [len(token_ids) for _, token_ids in rows]
    indices = torch.from_numpy(np.repeat([row for row, _ in rows], lengths))
    token_ids = _joined([token_ids for _, token_ids in rows])
    return indices.to(logits.device), token_ids.to(logits.device)


def _joined(parts: Sequence[array[int]]) -> torch.Tensor:
    """A copy of all parts, int64: the arrays may grow while the tensor lives."""
    return torch.from_numpy(np.concatenate([np.frombuffer(part, np.int64) for part in parts]))


def _spread(logits: torch.Tensor, values: Sequence[float], lengths: Sequence[int]) -> torch.Tensor:
    spread = np.repeat(np.array(values, np.float32), lengths)
    return torch.from_numpy(spread).to(logits.device)


def _finite(logits: torch.Tensor) -> tuple[float, float]:
    limits = torch.finfo(logits.dtype)
    return limits.min, limits.max
