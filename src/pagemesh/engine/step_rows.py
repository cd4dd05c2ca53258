"""What a step's hidden states are for: next tokens, log probabilities of prompts, and embeddings."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Final

import numpy as np
import numpy.typing as npt
import torch

from pagemesh.engine.kv_probe import KvProbe
from pagemesh.errors import InternalError, PagemeshError
from pagemesh.sampling.logprobs import TokenLogprobs
from pagemesh.sampling.params import SamplingParams
from pagemesh.sampling.samples import PendingScores, SampledRow, Sampler, not_finite_error
from pagemesh.scheduler.batch import PromptTargets, ScheduledSequence

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
        self.probe = KvProbe(chunks) if chunks else None
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
