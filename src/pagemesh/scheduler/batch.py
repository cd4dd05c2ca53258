"""What one engine step computes: plain ids and numbers, made by the scheduler, read by the runner."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from pagemesh.sampling.logit_rules import LogitRules
from pagemesh.sampling.params import SamplingParams
from pagemesh.sampling.structured.constraint import TokenConstraint

UNKNOWN_TOKEN: Final = -1
"""Stands in a batch for a token that the step before is still to sample."""


@dataclass(frozen=True, slots=True)
class PromptTargets:
    """Tokens of a prompt whose log probabilities are wanted of a chunk."""

    offset: int
    """Index in the chunk of the token in front of the first of them."""

    token_ids: Sequence[int]
    """The tokens, each of which follows one of the chunk's from `offset` on; never empty."""

    num_top: int
    """Likeliest tokens to name beside each."""


class ScheduledSequence(NamedTuple):
    """One request's share of a step. A tuple, because hundreds are made in every step."""

    request_id: str

    token_ids: Sequence[int]
    """Tokens to run, at positions start, start + 1, …; one token for a decode, a chunk for a prefill.

    A decode's may be UNKNOWN_TOKEN: see `previous_row`."""

    start: int
    """Position of the first of them, which is also the number of tokens whose KV is in the blocks when
    the steps before are computed."""

    block_ids: Sequence[int]
    """The block table; covers at least positions 0 … start + len(token_ids) - 1."""

    sampling: SamplingParams | None
    """Set when the chunk reaches the last known token, so that the next one is sampled."""

    suppressed_token_ids: Sequence[int] = ()
    """Tokens that must not be sampled now (stop tokens before min_tokens)."""

    rules: LogitRules | None = None
    """What else changes the logits of the next token; the request's own, which is up to date when the
    token is to be sampled."""

    constraint: TokenConstraint | None = None
    """What may come next in a structured output; likewise the request's own. The suppressed tokens may
    then be sampled where nothing else may come."""

    pooled: range | None = None
    """Indices in `token_ids` whose hidden states are wanted, for an embedding."""

    prompt_targets: PromptTargets | None = None
    """Set when the request asks for log probabilities of its prompt and the chunk brings new ones."""

    previous_row: int | None = None
    """Set when the token is unknown: its index among those that the batch launched before this one samples,
    in that batch's order (`StepResult.token_ids`)."""


class ExportedChunk(NamedTuple):
    """What a step computes of an export."""

    request_id: str

    num_tokens: int
    """Leading tokens of the prompt whose KV is in the blocks when the step is computed."""

    num_new_tokens: int
    """Tokens that the step computes."""


@dataclass(frozen=True, slots=True)
class BlockMoves:
    """KV blocks to copy, over all layers, before anything else of the step happens.

    Done in the order of the fields, each as (source, target): what one list writes, the next may read.
    Within a list no target is used twice, and none is a source. No step in flight reads or writes a target,
    nor writes what is needed of a source: the moves may be done beside it.
    """

    swap_outs: Sequence[tuple[int, int]] = ()
    """From a block of the cache to a block of the swap space."""

    swap_ins: Sequence[tuple[int, int]] = ()
    """From a block of the swap space to a block of the cache."""

    copies: Sequence[tuple[int, int]] = ()
    """From a block of the cache to another."""

    def __bool__(self) -> bool:
        return bool(self.swap_outs or self.swap_ins or self.copies)


NO_MOVES: Final = BlockMoves()


@dataclass(frozen=True, slots=True)
class Batch:
    """All sequences of a step, decodes first, and the moves that they rely on."""

    sequences: Sequence[ScheduledSequence]

    moves: BlockMoves = NO_MOVES
    """May be there without sequences: blocks of the cache were promised to somebody else."""

    exports: tuple[ExportedChunk, ...] = ()
    """Of the sequences, those whose blocks are read from outside as soon as there is something to read."""

    @property
    def num_tokens(self) -> int:
        """Tokens that the step computes."""
        return sum(len(sequence.token_ids) for sequence in self.sequences)
