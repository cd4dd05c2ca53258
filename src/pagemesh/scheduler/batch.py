"""What one engine step computes, and what it computed: plain ids and numbers.

The scheduler makes batches, with the copies of blocks that a step begins with, and reads results; the runner reads
batches and makes results.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from pagemesh.errors import PagemeshError
from pagemesh.sampling.logits_rules import LogitRules
from pagemesh.sampling.logprobs import TokenLogprobs
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


@dataclass(frozen=True, slots=True)
class StepResult:
    """The outcome of a batch; the KV of all its tokens is stored. Mappings are by request id."""

    token_ids: Sequence[int] = ()
    """Of the sequences with `sampling`, in batch order; without meaning for those in `errors`."""

    logprobs: Mapping[str, TokenLogprobs] = field(default_factory=dict)
    """Of the sampled tokens, for the sequences that ask for them."""

    prompt_logprobs: Mapping[str, Sequence[TokenLogprobs]] = field(default_factory=dict)
    """Of the prompt's tokens that follow those of a chunk, for the sequences that ask for them."""

    pooled_states: Mapping[str, npt.NDArray[np.float32]] = field(default_factory=dict)
    """Normed hidden states [N, hidden] of the tokens in `pooled`."""

    errors: Mapping[str, PagemeshError] = field(default_factory=dict)
    """Sequences that could not be computed, each for a reason of its own: their KV must not be used."""

    num_sampled: Sequence[int] | None = None
    """How many of the tokens each sequence with `sampling` has, at least one; None for one each.

    The KV of all but a sequence's last is stored as well: its blocks had room (`KvCacheManager.grow`). One that wants
    log probabilities has one."""


class MovePlan:
    """The next `BlockMoves` in the making."""

    def __init__(self) -> None:
        self._swap_outs: list[tuple[int, int]] = []
        self._swap_ins: list[tuple[int, int]] = []
        self._copies: dict[int, int] = {}  # target: source

    def swap_out(self, block_ids: Iterable[int], swap_ids: Iterable[int]) -> None:
        """Copy blocks of the cache, which may be freed at once, to the swap space."""
        # Later, a swap block may be one that a swap-in still has to read.
        assert not self._swap_ins, "a step's swap-outs come before its swap-ins"
        self._swap_outs += zip(block_ids, swap_ids, strict=True)

    def swap_in(self, swap_ids: Iterable[int], block_ids: Iterable[int]) -> None:
        """Copy blocks of the swap space, which may be freed at once, back to the cache."""
        self._swap_ins += zip(swap_ids, block_ids, strict=True)

    def copy(self, source: int, target: int) -> None:
        """Copy a block of the cache to another; the source must be held until the plan is taken."""
        # A copy of a copy comes from the first block: the second is only there when all copies are done.
        self._copies[target] = self._copies.get(source, source)

    def take(self) -> BlockMoves:
        """Everything since the last call."""
        if not (self._swap_outs or self._swap_ins or self._copies):
            return NO_MOVES
        copies = tuple((source, target) for target, source in self._copies.items())
        moves = BlockMoves(tuple(self._swap_outs), tuple(self._swap_ins), copies)
        self._swap_outs.clear()
        self._swap_ins.clear()
        self._copies.clear()
        return moves
