"""A batch as flat arrays, in the order in which it is computed, and what its hidden states are for.

Needs no token that is in flight.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from pagemesh.engine.paged_model import KvFiniteCheck
from pagemesh.errors import InternalError, PagemeshError
from pagemesh.sampling.logprobs import TokenLogprobs
from pagemesh.sampling.params import SamplingParams
from pagemesh.sampling.plan import SampledRow, not_finite_error
from pagemesh.sampling.sampler import PendingScores, Sampler
from pagemesh.scheduler.batch import PromptTargets, ScheduledSequence


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


Head = Callable[[torch.Tensor], torch.Tensor]
"""Makes logits [R, vocab] of hidden states [R, hidden]."""

MAX_SCORED_LOGITS: Final = 1 << 24
"""Logits of a prompt that are there at once: 64 MiB in float32."""


class StepRows:
    """The rows of a step's tokens that are needed, for sequences in the order of computation.

    The hidden states of these rows, [R, hidden], are in three parts: those to sample from, those that score
    tokens of prompts, and those to pool.
    """

    def __init__(self, sequences: Sequence[ScheduledSequence], vocab_size: int) -> None:
        self._rows_per_piece = max(1, MAX_SCORED_LOGITS // vocab_size)
        self.sampled: list[SampledRow] = []
        """What each row of the first part is sampled for."""
        self._targets: list[tuple[str, PromptTargets]] = []
        self._pooled: list[tuple[str, int]] = []
        sampled_rows: list[int] = []
        scored_rows: list[int] = []
        pooled_rows: list[int] = []
        chunks: list[tuple[str, int, int]] = []
        num_tokens = 0
        for sequence in sequences:
            targets = sequence.prompt_targets
            if targets is not None:
                first = num_tokens + targets.offset
                scored_rows += range(first, first + len(targets.token_ids))
                self._targets.append((sequence.request_id, targets))
            if sequence.pooled is not None:
                pooled_rows += [num_tokens + index for index in sequence.pooled]
                self._pooled.append((sequence.request_id, len(sequence.pooled)))
            first_token, num_tokens = num_tokens, num_tokens + len(sequence.token_ids)
            if sequence.sampling is None:
                chunks.append((sequence.request_id, first_token, num_tokens))
            else:
                sampled_rows.append(num_tokens - 1)
                self.sampled.append(_sampled_row(sequence, sequence.sampling))
        self.probe = KvFiniteCheck(chunks) if chunks else None
        """What looks at the KV of chunks from which nothing is sampled, if there are any."""
        self._num_scored = len(scored_rows)
        self._rows = sampled_rows + scored_rows + pooled_rows
        self._are_all = not scored_rows and num_tokens in (len(sampled_rows), len(pooled_rows))

    @property
    def are_next_tokens(self) -> bool:
        """Whether every token of the step is there to sample the next one from, and for nothing else."""
        return self._are_all and bool(self.sampled)

    def selection(self) -> npt.NDArray[np.int64] | None:
        """Indices of the rows, [R]; None when they are all tokens as they stand."""
        return None if self._are_all else np.array(self._rows, np.int64)

    def places(self, sequences: Sequence[ScheduledSequence]) -> list[int]:
        """For each sequence that samples, in the order given: its row in the first part."""
        rows = {row.request_id: index for index, row in enumerate(self.sampled)}
        return [rows[s.request_id] for s in sequences if s.sampling is not None]

    def pooled(self, hidden: torch.Tensor) -> torch.Tensor | None:
        """Those of the hidden states of all rows that are to be pooled, float32 [N, hidden]; None if none."""
        if not self._pooled:
            return None
        return hidden[len(self.sampled) + self._num_scored :].float()

    def states(
        self, pooled: npt.NDArray[np.float32] | None
    ) -> tuple[dict[str, npt.NDArray[np.float32]], dict[str, PagemeshError]]:
        """Hidden states by request id, of what `pooled` gave; and errors."""
        states: dict[str, npt.NDArray[np.float32]] = {}
        errors: dict[str, PagemeshError] = {}
        if pooled is None:
            return states, errors
        first = 0
        for request_id, num_rows in self._pooled:
            rows = states[request_id] = pooled[first : first + num_rows]
            first += num_rows
            if not np.isfinite(rows).all():
                errors[request_id] = InternalError(
                    f"the model gave hidden states that are not finite for {request_id}",
                    reason="HIDDEN_STATES_NOT_FINITE",
                )
        return states, errors

    def score(self, hidden: torch.Tensor, head: Head, sampler: Sampler) -> PromptScores:
        """Have tokens of prompts scored, from the hidden states of all rows."""
        scores = PromptScores([request_id for request_id, _ in self._targets])
        first = len(self.sampled)
        for request_id, targets in self._targets:
            for piece in _pieces(len(targets.token_ids), self._rows_per_piece):
                logits = head(hidden[first + piece.start : first + piece.stop])
                token_ids = targets.token_ids[piece.start : piece.stop]
                scores.add(request_id, sampler.score(logits, token_ids, targets.num_top))
            first += len(targets.token_ids)
        return scores


class PromptScores:
    """Log probabilities of prompts, in pieces."""

    def __init__(self, request_ids: Sequence[str]) -> None:
        self._request_ids = request_ids
        self._pieces: list[tuple[str, PendingScores]] = []

    def add(self, request_id: str, piece: PendingScores) -> None:
        """Note the next piece of a prompt."""
        self._pieces.append((request_id, piece))

    def read(self) -> tuple[dict[str, list[TokenLogprobs]], dict[str, PagemeshError]]:
        """Wait for them: by request id, and errors."""
        scores: dict[str, list[TokenLogprobs]] = {name: [] for name in self._request_ids}
        errors: dict[str, PagemeshError] = {}
        for request_id, piece in self._pieces:
            read = piece.read()
            scores[request_id] += read.logprobs
            if not read.are_finite:
                errors[request_id] = not_finite_error(request_id)
        return scores, errors


def _pieces(num_rows: int, num_at_once: int) -> Iterator[range]:
    for start in range(0, num_rows, num_at_once):
        yield range(start, min(start + num_at_once, num_rows))


def _sampled_row(sequence: ScheduledSequence, params: SamplingParams) -> SampledRow:
    return SampledRow(
        request_id=sequence.request_id,
        params=params,
        position=sequence.start + len(sequence.token_ids),
        suppressed_token_ids=sequence.suppressed_token_ids,
        rules=sequence.rules,
        constraint=sequence.constraint,
    )
