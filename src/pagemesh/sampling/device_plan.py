"""What is asked of a batch's rows, as flat arrays for a device: see `SamplingPlan`."""

from __future__ import annotations

from array import array
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from pagemesh.errors import PagemeshError
from pagemesh.sampling.samples import SampledRow, forbidden_ids, is_edited

Arrays = dict[str, npt.NDArray[np.generic]]

_WORD_BITS = 32


def plan_arrays(
    rows: Sequence[SampledRow], vocab_size: int
) -> tuple[Arrays, dict[str, PagemeshError]]:
    """The parts of a `SamplingPlan` by name; and errors by request id, of constraints that cannot go on.

    Copies what the rows refer to: their rules may change when this has returned.
    """
    params = [row.params for row in rows]
    edited = [index for index, row in enumerate(rows) if is_edited(row)]
    slots = np.full(len(rows), -1, np.int32)
    slots[edited] = np.arange(len(edited))
    top_ks = [p.top_k if 0 < p.top_k < vocab_size else 0 for p in params]
    drawn = [index for index, p in enumerate(params) if not p.greedy]
    arrays: Arrays = {
        "temperatures": np.array([p.temperature for p in params], np.float64),
        "top_ps": np.array([p.top_p for p in params], np.float64),
        "min_ps": np.array([p.min_p for p in params], np.float64),
        "seeds": np.array([p.seed for p in params], np.uint64).view(np.int64),
        "positions": np.array([row.position for row in rows], np.int64),
        "top_ks": np.array(top_ks, np.int32),
        "drawn_rows": np.array(drawn, np.int32),
        "edit_slots": slots,
    }
    arrays |= _entries([rows[index] for index in edited])
    masks, errors = _masks([rows[index] for index in edited], vocab_size)
    return arrays | masks, errors


def _entries(rows: Sequence[SampledRow]) -> Arrays:
    """Biases, penalties and forbidden tokens of rows that are edited."""
    penalties, bounds = np.zeros((len(rows), 3), np.float32), np.zeros((len(rows), 5), np.int32)
    ids: list[npt.NDArray[np.int32]] = []
    values: list[npt.NDArray[np.float32]] = []
    end = 0
    for slot, row in enumerate(rows):
        p = row.params
        penalties[slot] = p.repetition_penalty, p.frequency_penalty, p.presence_penalty
        for kind, (kind_ids, kind_values) in enumerate(_kinds(row)):
            bounds[slot, kind] = end
            ids.append(kind_ids)
            values.append(kind_values)
            end += len(kind_ids)
        bounds[slot, 4] = end
    return {
        "penalties": penalties,
        "entry_bounds": bounds,
        "entry_ids": np.concatenate(ids) if ids else np.zeros(0, np.int32),
        "entry_values": np.concatenate(values) if values else np.zeros(0, np.float32),
    }


_Kind = tuple[npt.NDArray[np.int32], npt.NDArray[np.float32]]


def _kinds(row: SampledRow) -> tuple[_Kind, _Kind, _Kind, _Kind]:
    """Ids and values of biased tokens, of those seen, of those of the output, and of forbidden ones."""
    rules, params = row.rules, row.params
    biased = seen = counted = _kind(array("q"))
    if rules is not None:
        biased = _kind(rules.bias_ids, np.frombuffer(rules.biases, np.float32))
        history = rules.history
        if history is not None and params.repetition_penalty != 1.0:
            seen = _kind(history.seen_ids)
        if history is not None and (params.frequency_penalty or params.presence_penalty):
            counts = np.frombuffer(history.output_counts, np.int64)
            counted = _kind(history.output_ids, counts.astype(np.float32))
    return biased, seen, counted, _kind(array("q", forbidden_ids(row)))


def _kind(ids: array[int], values: npt.NDArray[np.float32] | None = None) -> _Kind:
    copied = np.frombuffer(ids, np.int64).astype(np.int32)
    return copied, np.zeros(len(copied), np.float32) if values is None else values


def _masks(rows: Sequence[SampledRow], vocab_size: int) -> tuple[Arrays, dict[str, PagemeshError]]:
    """A mask for each row that has a constraint or a list of allowed tokens, or both."""
    num_words = -(-vocab_size // _WORD_BITS)
    mask_rows = np.full(len(rows), -1, np.int32)
    masks: list[npt.NDArray[np.int32]] = []
    errors: dict[str, PagemeshError] = {}
    for slot, row in enumerate(rows):
        allowed = None if row.rules is None else row.rules.allowed_ids
        if row.constraint is None and allowed is None:
            continue
        mask = np.full(num_words, -1, np.int32)
        if row.constraint is not None:
            try:
                row.constraint.fill_mask(mask, row.suppressed_token_ids)
            except PagemeshError as error:
                errors[row.request_id] = error
                mask.fill(-1)
        if allowed is not None:
            mask &= _bits(allowed, num_words)
        mask_rows[slot] = len(masks)
        masks.append(mask)
    stacked = np.stack(masks) if masks else np.zeros((0, num_words), np.int32)
    return {"mask_rows": mask_rows, "masks": stacked}, errors


def _bits(ids: array[int], num_words: int) -> npt.NDArray[np.int32]:
    bits = np.zeros(num_words * _WORD_BITS, np.bool_)
    bits[np.frombuffer(ids, np.int64)] = True
    return np.packbits(bits, bitorder="little").view(np.int32)
