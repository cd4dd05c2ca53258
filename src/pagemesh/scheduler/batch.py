"""What one engine step computes: plain ids and numbers, made by the scheduler, read by the runner."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pagemesh.sampling.params import SamplingParams


@dataclass(frozen=True, slots=True)
class ScheduledSequence:
    """One request's share of a step."""

    request_id: str

    token_ids: Sequence[int]
    """Tokens to run, at positions start, start + 1, …; one token for a decode, a chunk for a prefill."""

    start: int
    """Position of the first of them, which is also the number of tokens whose KV is in the blocks."""

    block_ids: Sequence[int]
    """The block table; covers at least positions 0 … start + len(token_ids) - 1."""

    sampling: SamplingParams | None
    """Set when the chunk reaches the last known token, so that the next one is sampled."""

    suppressed_token_ids: Sequence[int] = ()
    """Tokens that must not be sampled now (stop tokens before min_tokens)."""


@dataclass(frozen=True, slots=True)
class Batch:
    """All sequences of a step, decodes first."""

    sequences: Sequence[ScheduledSequence]

    @property
    def num_tokens(self) -> int:
        """Tokens that the step computes."""
        return sum(len(sequence.token_ids) for sequence in self.sequences)
