"""Choosing tokens on a CPU: edits by numpy, in copies of the rows that have any, and draws by a kernel of its own.

An edit touches only the tokens that the plan names, except where a row has a mask. What is forbidden stays at -inf
whatever is added to it, so it comes last.
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt
import torch

from pagemesh.kernels.arg_max import arg_max
from pagemesh.kernels.sampling.cpu_draw import CpuDraws, DrawParameters
from pagemesh.kernels.sampling.interface import (
    NOT_FINITE,
    NOTHING_LEFT,
    SamplingPlan,
    uniform_draws,
)

_NUM_KINDS = 4
"""Of entries: biases, tokens that were seen, tokens of the output, forbidden ones."""

_HIGHEST = np.finfo(np.float32).max
_LOWEST = np.finfo(np.float32).min

Rows = npt.NDArray[np.int32]


class CpuTokenChooser:
    """`TokenChooser` of tensors on the host, which has chosen when it returns."""

    def __init__(self) -> None:
        self._draws = CpuDraws()

    def __call__(
        self,
        logits: torch.Tensor,
        plan: SamplingPlan | None,
        token_ids: torch.Tensor,
        flags: torch.Tensor,
    ) -> None:
        best, _ = arg_max(logits, token_ids)
        # The maximum of a row with a NaN is NaN, so that one value per row tells of the whole row.
        failed = ~np.isfinite(best.numpy())
        flags.numpy()[:] = failed * NOT_FINITE
        if plan is None:
            return
        rows, edited = _edited_rows(plan), None
        if len(rows):
            # In order, so that as many rows as there are stand as they are.
            chosen = logits if len(rows) == len(logits) else logits[torch.from_numpy(rows)]
            edited = chosen.to(torch.float32, copy=True)
            apply_edits(edited, plan)
            best, best_ids = arg_max(edited)
            token_ids.numpy()[rows] = best_ids.numpy()
            is_left = failed[rows] | np.isfinite(best.numpy())
            flags.numpy()[rows[~is_left]] = NOTHING_LEFT
        drawn = plan.drawn_rows.numpy()
        drawn = drawn[flags.numpy()[drawn] == 0]
        if len(drawn):
            values = _values(logits, edited, plan, drawn)
            token_ids.numpy()[drawn] = self._draws(values, _draw_parameters(plan, drawn))


def apply_edits(edited: torch.Tensor, plan: SamplingPlan) -> None:
    """Change the rows that the plan edits, float32 [E, vocab]: its entries kind by kind, then its masks."""
    num_rows, vocab_size = edited.shape
    logits, bounds, ids = edited.view(-1).numpy(), plan.entry_bounds.numpy(), plan.entry_ids.numpy()
    values, penalties = plan.entry_values.numpy(), plan.penalties.numpy().T
    lengths = bounds[:, 1:] - bounds[:, :-1]
    first_places = np.arange(0, num_rows * vocab_size, vocab_size)
    # What overflows is clamped, or stays an infinity that is told of.
    with np.errstate(all="ignore"):
        for kind, edit in enumerate((_add_biases, _penalise_seen, _penalise_output, _forbid)):
            counts = lengths[:, kind]
            places = first_places.repeat(counts)
            if not len(places):
                continue
            entries: slice | npt.NDArray[np.bool_] = slice(None)
            if len(places) < len(ids):
                kinds = np.tile(np.arange(_NUM_KINDS), num_rows).repeat(lengths.ravel())
                entries = kinds == kind
            # Each place once, so that the order of writing does not matter.
            places += ids[entries]
            logits[places] = edit(logits[places], values[entries], penalties, counts)
    _apply_masks(edited, plan)


_Floats = npt.NDArray[np.float32]

# Each gets the logits and the values of entries, the penalties of rows, [3, R], and how many entries each row has.


def _add_biases(logits: _Floats, biases: _Floats, _penalties: _Floats, _counts: Rows) -> _Floats:
    return logits + biases


def _penalise_seen(logits: _Floats, _values: _Floats, penalties: _Floats, counts: Rows) -> _Floats:
    """Keskar et al. 2019, "CTRL" (https://arxiv.org/abs/1909.05858), for both signs as in vLLM."""
    repetition = penalties[0].repeat(counts)
    penalised: _Floats = np.where(logits > 0, logits / repetition, logits * repetition)
    # A penalty may be as small as the smallest number: what overflows is still a logit.
    np.clip(penalised, _LOWEST, _HIGHEST, out=penalised)
    return penalised


def _penalise_output(
    logits: _Floats, occurrences: _Floats, penalties: _Floats, counts: Rows
) -> _Floats:
    _, frequency, presence = penalties
    penalised: _Floats = logits - frequency.repeat(counts) * occurrences - presence.repeat(counts)
    return penalised


def _forbid(logits: _Floats, _values: _Floats, _penalties: _Floats, _counts: Rows) -> _Floats:
    return np.full_like(logits, -math.inf)


def _apply_masks(edited: torch.Tensor, plan: SamplingPlan) -> None:
    """Set what the rows' masks do not allow to -inf."""
    mask_rows = plan.mask_rows.numpy()
    (slots,) = np.nonzero(mask_rows >= 0)
    if not len(slots):
        return
    masks = ~plan.masks.numpy()[mask_rows[slots]]
    bits = np.unpackbits(masks.view(np.uint8), axis=1, count=edited.shape[-1], bitorder="little")
    forbidden = torch.from_numpy(bits.view(np.bool_))
    if len(slots) == len(edited):
        edited.masked_fill_(forbidden, -math.inf)
    else:
        masked = torch.from_numpy(slots)
        edited[masked] = edited[masked].masked_fill_(forbidden, -math.inf)


def _edited_rows(plan: SamplingPlan) -> Rows:
    """The row of each slot."""
    slots = plan.edit_slots.numpy()
    rows = np.empty(len(plan.mask_rows), np.int32)
    (edited,) = np.nonzero(slots >= 0)
    rows[slots[edited]] = edited
    return rows


def _values(
    logits: torch.Tensor, edited: torch.Tensor | None, plan: SamplingPlan, drawn: Rows
) -> torch.Tensor:
    """The logits to draw from, of each drawn row."""
    if edited is None:
        return (
            logits if len(drawn) == len(logits) else logits.index_select(0, torch.from_numpy(drawn))
        )
    slots = plan.edit_slots.numpy()[drawn]
    if np.array_equal(slots, np.arange(len(edited))):
        return edited
    values = logits.index_select(0, torch.from_numpy(drawn)).float()
    (places,) = np.nonzero(slots >= 0)
    values[torch.from_numpy(places)] = edited[torch.from_numpy(slots[places])]
    return values


def _draw_parameters(plan: SamplingPlan, drawn: Rows) -> DrawParameters:
    seeds, positions = plan.seeds.numpy().view(np.uint64), plan.positions.numpy()
    return DrawParameters(
        plan.temperatures.numpy()[drawn],
        plan.top_ks.numpy()[drawn].astype(np.int64),
        plan.min_ps.numpy()[drawn],
        plan.top_ps.numpy()[drawn],
        uniform_draws(seeds[drawn], positions[drawn]),
    )
