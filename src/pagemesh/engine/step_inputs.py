"""A batch as flat arrays, in the order in which it is computed. Needs no token that is in flight, and no torch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from pagemesh.scheduler.batch import ScheduledSequence


class StepInputs(NamedTuple):
    """All tokens of a step, one sequence's behind the other's."""

    sequences: Sequence[ScheduledSequence]
    """In the order of computation: decodes first, similar contexts side by side, as attention groups
    neighbours."""

    columns: npt.NDArray[np.int64]
    """[3, T]: token ids, their positions, and the slots of the KV cache that theirs goes into."""

    unknown: Sequence[int]
    """Indices, of the T, of the tokens that are in flight; UNKNOWN_TOKEN is in their places."""

    previous_rows: Sequence[int]
    """For each of these: which of the tokens that the batch before samples it is, in that batch's order."""


def make_step_inputs(sequences: Sequence[ScheduledSequence], block_size: int) -> StepInputs:
    """Put a batch's sequences in order and lay out their tokens."""
    ordered = sorted(sequences, key=_layout_key)
    unknown: list[int] = []
    previous_rows: list[int] = []
    for index, sequence in enumerate(ordered):
        # They are decodes, in front of which there are only other tokens of one each.
        if sequence.previous_row is not None:
            unknown.append(index)
            previous_rows.append(sequence.previous_row)
    return StepInputs(ordered, _flatten(ordered, block_size), unknown, previous_rows)


def _layout_key(sequence: ScheduledSequence) -> tuple[bool, int]:
    num_tokens = len(sequence.token_ids)
    return num_tokens > 1, sequence.start + num_tokens


def _flatten(sequences: Sequence[ScheduledSequence], block_size: int) -> npt.NDArray[np.int64]:
    """Token ids, positions and slots of all tokens, [3, T]; decodes come first."""
    decodes = [s for s in sequences if len(s.token_ids) == 1]
    columns = [_chunk_columns(s, block_size) for s in sequences[len(decodes) :]]
    if decodes:
        token_ids = [s.token_ids[0] for s in decodes]
        positions = [s.start for s in decodes]
        slots = [
            s.block_ids[s.start // block_size] * block_size + s.start % block_size for s in decodes
        ]
        columns.insert(0, np.array([token_ids, positions, slots], dtype=np.int64))
    return columns[0] if len(columns) == 1 else np.concatenate(columns, axis=1)


def _chunk_columns(sequence: ScheduledSequence, block_size: int) -> npt.NDArray[np.int64]:
    positions = np.arange(sequence.start, sequence.start + len(sequence.token_ids))
    first = sequence.start // block_size
    block_ids = np.array(sequence.block_ids[first : positions[-1] // block_size + 1])
    slots = block_ids[positions // block_size - first] * block_size + positions % block_size
    return np.stack([np.array(sequence.token_ids), positions, slots])
