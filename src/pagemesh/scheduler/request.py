"""The state of one request inside the engine. Plain data; who changes it is written at the fields."""

from __future__ import annotations

import enum
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from pagemesh.core.request import EngineRequest
from pagemesh.sampling.logit_rules import LogitRules
from pagemesh.sampling.logprobs import TokenLogprobs
from pagemesh.sampling.structured.constraint import TokenConstraint
from pagemesh.scheduler.prompt_vector import PromptVector


class RequestState(enum.Enum):
    """Where a request is in its life."""

    WAITING_GRAMMAR = "waiting_grammar"
    """For its grammar, outside of the queue: nobody waits behind it, and it holds nothing."""

    WAITING = "waiting"
    """For blocks and a place in the batch; holds neither, but maybe blocks of the swap space."""

    WAITING_KV = "waiting_kv"
    """Import: has blocks and a place, and waits for the importer to fill the blocks."""

    RUNNING = "running"
    """Has blocks and a place; every step may compute some of its tokens."""

    FINISHED = "finished"
    """Its last output is out; only a lease keeps its blocks."""


class Lease(enum.Flag):
    """Who outside uses a request's blocks: they stay until all of its leases have ended."""

    NONE = 0

    EXPORT = enum.auto()
    """Somebody reads them, from the submission on, until `release`."""

    IMPORT = enum.auto()
    """Somebody writes them, from the grant on, until `finish_import`."""


@dataclass(slots=True, eq=False)
class Request:
    """A request from submission until its last block is free.

    Prefill, decode, resumption, recompute after preemption and import are one thing: compute the
    tokens [num_computed_tokens, len(token_ids)) and sample the next one when the end is reached. An
    embedding is a prefill that ends with a vector instead.
    """

    spec: EngineRequest

    arrival: int
    """Number of the request in order of submission."""

    token_ids: list[int]
    """Prompt, resumed and generated tokens."""

    max_total_tokens: int
    """The request ends when it has this many tokens."""

    leases: Lease
    """Those that are open."""

    awaits_kv: bool
    """Import whose KV may still come from outside."""

    leader: Request | None = None
    """Of a fork: the request whose prompt KV it shares, if that was known, and no export, when it came."""

    constraint: TokenConstraint | None = None
    """What may come next in a structured output; set when its grammar is compiled."""

    rules: LogitRules | None = None
    """What changes the logits before a token is sampled; told of every generated token."""

    vector: PromptVector | None = None
    """The embedding in the making, if that is what is asked for: then no token is sampled."""

    state: RequestState = RequestState.WAITING

    num_flights: int = 0
    """Steps with this request that were planned and not computed yet."""

    num_launched_tokens: int = 0
    """Leading tokens whose KV is in the blocks when those steps are computed; grows by `StepPlan`. One more
    than are known when the step in flight samples a token and the next one was planned with it."""

    sampled_row: int = 0
    """Place of the token in flight among all that its step samples."""

    num_computed_tokens: int = 0
    """Leading tokens whose KV is in the blocks; grows by `BlockTables`, like the fields below."""

    block_ids: list[int] = field(default_factory=list)
    """The block table: block i holds the KV of tokens [i * block_size, (i + 1) * block_size)."""

    block_hashes: list[bytes] = field(default_factory=list)
    """Names of the full blocks of the known tokens."""

    num_stored_blocks: int = 0
    """Leading blocks that were offered to the prefix cache."""

    swap_ids: list[int] = field(default_factory=list)
    """Blocks of the swap space: of a preempted request, the KV that its first blocks had."""

    num_swapped_tokens: int = 0
    """Leading tokens whose KV is in them."""

    num_cached_tokens: int | None = None
    """Prefix tokens found in the prefix cache when blocks were reserved for the first time."""

    num_received_tokens: int = 0
    """Tokens whose KV came from the importer; while it is at work, those expected from it."""

    cumulative_logprob: float = 0.0
    """Sum of the log probabilities of the reported tokens, where they are asked for."""

    prompt_logprobs: list[TokenLogprobs] = field(default_factory=list)
    """Of the prompt's tokens from the second on, as far as they are known; reported with the first token."""

    request_id: str = field(init=False)
    """The submitter's name for it."""

    precedence: tuple[int, int] = field(init=False)
    """Smaller runs first; no two requests have the same, and a request's never changes."""

    num_prompt_tokens: int = field(init=False)
    """Length of the prompt."""

    num_given_tokens: int = field(init=False)
    """Of prompt and resumed tokens: what an import may bring KV of."""

    def __post_init__(self) -> None:
        self.request_id = self.spec.request_id
        self.precedence = (self.spec.priority, self.arrival)
        self.num_prompt_tokens = len(self.spec.prompt_token_ids)
        self.num_given_tokens = self.num_prompt_tokens + len(self.spec.resume_token_ids)

    def add_states(self, states: npt.NDArray[np.float32]) -> bytes | None:
        """Add hidden states [N, hidden] to the embedding; gives it when all tokens are computed."""
        assert self.vector is not None, "no embedding is asked for"
        self.vector.add(states)
        return self.vector.result() if self.num_uncomputed_tokens == 0 else None

    @property
    def num_tokens(self) -> int:
        """All known tokens."""
        return len(self.token_ids)

    @property
    def num_generated_tokens(self) -> int:
        """Tokens behind the prompt, those generated elsewhere included."""
        return len(self.token_ids) - self.num_prompt_tokens

    @property
    def num_uncomputed_tokens(self) -> int:
        """Known tokens whose KV is missing; at least 1 until the request ends."""
        return len(self.token_ids) - self.num_computed_tokens

    @property
    def num_skippable_tokens(self) -> int:
        """Leading tokens that need not be computed where their KV is there already.

        The log probabilities of a prompt's token come from computing the one in front of it. A mean needs
        the hidden states of all tokens that are not in it yet.
        """
        if self.vector is not None:
            return self.vector.num_skippable_tokens
        if self.spec.sampling.prompt_logprobs is None or self.num_generated_tokens > 0:
            return self.num_tokens - 1
        return len(self.prompt_logprobs)

    @property
    def num_leader_tokens(self) -> int:
        """Leading tokens that a fork takes from its leader: all but one, from which it samples."""
        return min(self.num_prompt_tokens, self.num_skippable_tokens)

    @property
    def awaits_leader(self) -> bool:
        """Whether a fork should wait: its leader is yet to compute what the fork will share.

        Not for one that is behind it: that might wait for many others. Nor once it was admitted
        itself: then more of its KV may be in the prefix cache than the leader has.
        """
        leader = self.leader
        return (
            leader is not None
            and self.num_cached_tokens is None
            and leader.state is not RequestState.FINISHED
            and leader.num_computed_tokens < self.num_leader_tokens
            and leader.precedence < self.precedence
        )

    @property
    def outlives_next_token(self) -> bool:
        """Whether the request goes on behind its next token, unless that stops it."""
        return len(self.token_ids) + 1 < self.max_total_tokens
