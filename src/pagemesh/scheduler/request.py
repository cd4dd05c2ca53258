"""The state of one request inside the engine, as plain data, and the queue of those that wait.

Who changes what is written at the fields. A request for a vector gathers it from its prompt's hidden states, as chunks
bring them.
"""

from __future__ import annotations

import enum
from bisect import bisect_left, insort
from collections.abc import Iterator
from dataclasses import dataclass, field
from operator import attrgetter

import numpy as np
import numpy.typing as npt

from pagemesh.core.engine import Pooling
from pagemesh.core.request import EngineRequest
from pagemesh.sampling.logits_rules import LogitRules
from pagemesh.sampling.logprobs import TokenLogprobs
from pagemesh.sampling.structured.constraint import TokenConstraint


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

    vector: Pooler | None = None
    """The embedding in the making, if that is what is asked for: then no token is sampled."""

    state: RequestState = RequestState.WAITING

    num_in_flight: int = 0
    """Steps with this request that were planned and not computed yet."""

    num_launched_tokens: int = 0
    """Leading tokens whose KV is in the blocks when those steps are computed; grows by `StepPlan`. One more
    than are known when the step in flight samples a token and the next one was planned with it."""

    sampled_row: int = 0
    """Place of the token in flight among all that its step samples."""

    num_computed_tokens: int = 0
    """Leading tokens whose KV is in the blocks; grows by `KvCacheManager`, like the fields below."""

    block_ids: list[int] = field(default_factory=list)
    """The block table: block i holds the KV of tokens [i * block_size, (i + 1) * block_size)."""

    block_hashes: list[bytes] = field(default_factory=list)
    """Hashes of the full blocks of the known tokens."""

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


by_precedence = attrgetter("precedence")
"""Sort key of requests."""


class RequestQueue:
    """A sorted set of requests; a request's precedence never changes, so neither does its place."""

    def __init__(self) -> None:
        self._requests: list[Request] = []

    def __len__(self) -> int:
        return len(self._requests)

    def __iter__(self) -> Iterator[Request]:
        """First to last in order of precedence, as they are now: the queue may change meanwhile."""
        return iter(tuple(self._requests))

    def __reversed__(self) -> Iterator[Request]:
        return iter(tuple(reversed(self._requests)))

    def add(self, request: Request) -> None:
        """Put the request at its place."""
        insort(self._requests, request, key=by_precedence)

    def remove(self, request: Request) -> None:
        """Take the request out; it must be in."""
        index = bisect_left(self._requests, request.precedence, key=by_precedence)
        assert self._requests[index] is request
        del self._requests[index]


class WaitingQueue(RequestQueue):
    """A queue of requests that wait, with sums over them: nothing of theirs changes while they are in."""

    def __init__(self) -> None:
        super().__init__()
        self.num_pending_tokens = 0
        """Prompt tokens that are to be computed for them."""
        self.num_swapped = 0
        """Requests whose KV is in the swap space."""

    def add(self, request: Request) -> None:
        """Put the request at its place."""
        super().add(request)
        self.num_pending_tokens += _num_pending_tokens(request)
        self.num_swapped += request.num_swapped_tokens > 0

    def remove(self, request: Request) -> None:
        """Take the request out; it must be in."""
        super().remove(request)
        self.num_pending_tokens -= _num_pending_tokens(request)
        self.num_swapped -= request.num_swapped_tokens > 0

    def check_integrity(self) -> None:
        """Assert that the sums are those of the requests that are in."""
        assert self.num_pending_tokens == sum(map(_num_pending_tokens, self))
        assert self.num_swapped == sum(request.num_swapped_tokens > 0 for request in self)


def _num_pending_tokens(request: Request) -> int:
    """Of a waiting request: what it will compute, if neither an importer nor a leader brings it."""
    if request.awaits_kv:
        return 0
    if request.leader is not None and request.num_cached_tokens is None:
        # As if the leader were still there to share with; whether it will be is not known yet.
        return request.num_uncomputed_tokens - request.num_leader_tokens
    return request.num_uncomputed_tokens - request.num_swapped_tokens


_SMALLEST_LENGTH = 1e-12
"""Vectors shorter than this are divided by it instead of by their length, as torch's normalize does."""


class Pooler:
    """The pooled hidden states of one request's prompt.

    A mean is a sum in float64, token by token in the prompt's order, so that it does not depend on how
    the prompt was cut into chunks. It outlives preemption: a token is summed once.
    """

    def __init__(self, pooling: Pooling, num_tokens: int) -> None:
        """For a prompt of `num_tokens` tokens."""
        self._pooling = pooling
        self._num_tokens = num_tokens
        self._num_pooled = 0
        self._sum: npt.NDArray[np.float64] | None = None

    @property
    def num_skippable_tokens(self) -> int:
        """Leading tokens that need not be computed where their KV is there already."""
        return self._num_tokens - 1 if self._pooling.kind == "last" else self._num_pooled

    def wanted(self, start: int, end: int) -> range | None:
        """Indices in the chunk [start, end) of the tokens whose hidden states are wanted, if any are."""
        first = max(start, self.num_skippable_tokens)
        if self._pooling.kind == "cls":
            end = min(end, 1)
        return range(first - start, end - start) if first < end else None

    def add(self, states: npt.NDArray[np.float32]) -> None:
        """Take the states [N, hidden] that were wanted of a chunk."""
        if self._sum is None:
            self._sum = np.zeros(states.shape[1], np.float64)
        for state in states:
            self._sum += state
        self._num_pooled += len(states)

    def result(self) -> bytes:
        """The vector, float32, little-endian; all wanted states must have been added."""
        assert self._sum is not None, "no hidden state was added"
        vector = self._sum / self._num_pooled
        if self._pooling.normalize:
            vector /= max(float(np.sqrt(np.dot(vector, vector))), _SMALLEST_LENGTH)
        return vector.astype("<f4").tobytes()
