"""What an engine takes and gives: the contract between services and engines. No torch, no grpc.

A request belongs to whoever submitted it until its last output (`finish_reason` set) was delivered.
Requests whose KV travels hold their blocks longer, as a lease:

* export (`hold_blocks`): the engine reports the blocks once, in `StepOutput.exports`, and what of them
  can be read in `StepOutput.progress`; they stay readable until `release`, which also cancels what still
  runs;
* import (`await_kv`): the engine reserves blocks and reports them in `StepOutput.grants`; only the
  importer writes them until it calls `finish_import`, exactly once per grant, whatever happened.

What travels is the KV of all tokens that a request comes with: of its prompt, and of those that are resumed.

A request may be both: what it imports it does not compute, and all of it is exported. The two leases end
independently of each other, in any order.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Final, Literal, NamedTuple, Protocol

from pagemesh.cache.digest import CacheDigest
from pagemesh.cache.swap_space import SwapTotals
from pagemesh.engine.core_claims import CoreTotals
from pagemesh.engine.prefill_rate import PrefillRate
from pagemesh.errors import PagemeshError
from pagemesh.sampling.logprobs import TokenLogprobs
from pagemesh.sampling.params import SamplingParams


class FinishReason(enum.Enum):
    """Why a request ended."""

    STOP = "stop"
    LENGTH = "length"
    CANCELLED = "cancelled"
    ERROR = "error"


@dataclass(frozen=True, slots=True)
class Pooling:
    """How one vector is made of the normed hidden states of a prompt's tokens."""

    kind: Literal["last", "mean", "cls"]
    """The last token's state, the mean over all tokens, or the first token's state."""

    normalize: bool
    """Whether the vector is scaled to a length of 1."""


@dataclass(frozen=True, slots=True)
class EngineRequest:
    """A request as it enters the engine."""

    request_id: str
    """Unique among the requests that the engine knows."""

    prompt_token_ids: tuple[int, ...]
    """Never empty."""

    sampling: SamplingParams = field(default_factory=SamplingParams)
    """How tokens are chosen; without meaning where an embedding is asked for."""

    resume_token_ids: tuple[int, ...] = ()
    """Tokens generated elsewhere before; counted by max_tokens, not reported again."""

    priority: int = 0
    """Lower runs first; ties by arrival."""

    cache_salt: bytes = b""
    """Tenant salt of the block hashes."""

    hold_blocks: bool = False
    """Export: generate one token and keep the blocks of what is in front of it readable until `release`."""

    await_kv: bool = False
    """Import: reserve blocks and wait for `finish_import` before the request is scheduled."""

    fork_of: str | None = None
    """request_id of a request with the same prompt and salt, the leader, whose prompt KV this one shares.

    It waits while the leader computes or imports the prompt. A leader that is over, unknown or an export is
    none. Either way its tokens are those that it would have alone."""

    embed: bool = False
    """Answer with the prompt's embedding, pooled as `EngineInfo.pooling` says, instead of with tokens."""

    normalize: bool | None = None
    """Whether the embedding is scaled to a length of 1; None for what `EngineInfo.pooling` says."""


class RequestOutput(NamedTuple):
    """New tokens, or the end, of one request. A tuple, because hundreds are made in every step."""

    request_id: str
    token_ids: tuple[int, ...] = ()
    finish_reason: FinishReason | None = None
    error: PagemeshError | None = None
    """Set when finish_reason is ERROR."""
    num_cached_tokens: int = 0
    """Prefix tokens taken from the prefix cache; meaningful with the first token."""
    num_received_tokens: int = 0
    """Tokens whose KV was imported; meaningful with the first token."""
    logprobs: tuple[TokenLogprobs, ...] | None = None
    """One for each of `token_ids`; None when the request does not ask for them."""
    prompt_logprobs: tuple[TokenLogprobs, ...] | None = None
    """With the first token of a request that asks for them: of each prompt token but the first."""
    cumulative_logprob: float | None = None
    """Sum over all tokens reported until now; None when the request does not ask for `logprobs`."""
    embedding: bytes | None = None
    """Of an `embed` request, with its end: float32, little-endian."""


@dataclass(frozen=True, slots=True)
class KvExport:
    """Export: these blocks will hold the request's KV; how much of it they hold is told by `KvProgress`."""

    request_id: str
    block_ids: tuple[int, ...]
    """Block table of all tokens that the request came with."""
    block_hashes: tuple[bytes, ...]
    """Names of the full blocks among them."""
    num_held_tokens: int
    """Leading tokens found in the prefix cache."""


class KvProgress(NamedTuple):
    """Export: the KV of the request's tokens [0, num_tokens) is in layers [0, num_layers) and may be read.

    That is added to what was told before: KV that can be read stays so until the export is released.
    Parts of a step are told while it computes, but its last layer only when the step has succeeded. So
    no token of a step that failed is ever told in all layers.
    """

    request_id: str
    num_tokens: int
    num_layers: int


@dataclass(frozen=True, slots=True)
class KvGrant:
    """Import: blocks are reserved; the importer may write those behind the held ones."""

    request_id: str
    num_held_tokens: int
    """Leading tokens found in the prefix cache; a multiple of the block size, less than the request came with."""
    block_ids: tuple[int, ...]
    """Block table of all tokens that the request came with."""
    block_hashes: tuple[bytes, ...]
    """Names of the full blocks among them."""


class GrammarTotals(NamedTuple):
    """What structured outputs had to wait for, since the engine was started."""

    num_requests: int = 0
    num_kept: int = 0
    """Of these, those whose grammar had been compiled for others."""
    wait_seconds: float = 0.0
    """Of all others together, until their grammars were compiled or refused."""

    def plus(self, waited: float | None) -> GrammarTotals:
        """With one request more, which waited so many seconds; None when its grammar was there."""
        return GrammarTotals(
            self.num_requests + 1,
            self.num_kept + (waited is None),
            self.wait_seconds + (waited or 0.0),
        )


@dataclass(frozen=True, slots=True)
class EngineLoad:
    """How busy the engine is."""

    num_running: int = 0
    num_waiting: int = 0
    num_queued: int = 0
    """Of the waiting requests, those without a seat."""
    num_free_blocks: int = 0
    """Blocks that no request owns, cached ones included."""
    num_pending_prefill_tokens: int = 0
    num_swapped: int = 0
    """Of the waiting requests, those whose KV is in the swap space."""
    num_unused_slots: int = 0
    """Token slots of the blocks that requests own that hold no KV."""
    num_preemptions: int = 0
    """Since the engine was started; those into the swap space are in `swap` as well."""
    swap: SwapTotals = field(default_factory=SwapTotals)
    grammars: GrammarTotals = field(default_factory=GrammarTotals)
    prefill_rate: PrefillRate = field(default=PrefillRate(), compare=False)
    """What prompts cost at present. It changes a little with every step, which alone makes no news: two
    loads that differ in nothing else are equal."""
    cores: CoreTotals = field(default=CoreTotals(), compare=False)
    """What the engine borrowed of other workers' cores; likewise no news."""

    @property
    def is_idle(self) -> bool:
        """Whether no request runs or waits."""
        return not self.num_running and not self.num_waiting

    def prefill_seconds(self, num_tokens: int, num_held_tokens: int) -> float | None:
        """Time until a prompt that comes now would be computed here, behind all that are pending.

        `num_tokens` are to be computed behind a prefix of `num_held_tokens`. None when nothing was
        measured yet.
        """
        queue = self.prefill_rate.queue_seconds(self.num_pending_prefill_tokens)
        own = self.prefill_rate.seconds(num_tokens, num_held_tokens)
        return None if queue is None or own is None else queue + own


@dataclass(frozen=True, slots=True)
class StepOutput:
    """What became known in one engine step, or, as far as it is `progress`, within one; told once, in order."""

    outputs: Sequence[RequestOutput] = ()
    exports: Sequence[KvExport] = ()
    progress: Sequence[KvProgress] = ()
    grants: Sequence[KvGrant] = ()
    stored_block_hashes: Sequence[bytes] = ()
    """Blocks that entered the prefix cache."""
    removed_block_hashes: Sequence[bytes] = ()
    """Blocks that left it (a block may be stored again later in the same or another step)."""
    cache_snapshot: Sequence[bytes] | None = None
    """After `publish_snapshot`: names of all cached blocks after this step's stores and removals."""
    cache_digest: CacheDigest | None = None
    """Of all cached blocks after this step's stores and removals; None where the cache did not change and no
    snapshot was asked for."""
    load: EngineLoad = field(default_factory=EngineLoad)


NUM_BYTES_OF: Final[Mapping[str, int]] = {
    "float32": 4,
    "bfloat16": 2,
    "float16": 2,
    "float8_e4m3fn": 1,
}
"""Of a number in a KV block, by the names of its type in torch."""


@dataclass(frozen=True, slots=True)
class BlockLayout:
    """Shape of one KV block; equal layouts can exchange blocks."""

    block_size: int
    num_layers: int
    num_kv_heads: int
    head_dim: int
    dtype: str
    """As torch names it, for example "float32"."""

    @property
    def num_bytes_per_layer(self) -> int:
        """Bytes of one block in one layer, K and V together."""
        numbers = 2 * self.block_size * self.num_kv_heads * self.head_dim
        return numbers * NUM_BYTES_OF[self.dtype]

    @property
    def num_bytes(self) -> int:
        """Bytes of one block over all layers."""
        return self.num_layers * self.num_bytes_per_layer

    def num_bytes_of(self, num_blocks: int, num_layers: int) -> int:
        """Bytes of so many blocks in so many layers."""
        return num_blocks * num_layers * self.num_bytes_per_layer


@dataclass(frozen=True, slots=True)
class EngineInfo:
    """What a worker announces about its engine."""

    model_fingerprint: str
    """Hex digest over weights, dtype and architecture."""
    layout: BlockLayout
    num_blocks: int
    max_model_len: int
    max_num_seqs: int
    pooling: Pooling | None = None
    """How embeddings are made; None when the model cannot make any."""
    generates: bool = True
    """Whether the model has an output head; without one it makes embeddings only."""
    causal: bool = True
    """Whether tokens see those in front of them alone. In an encoder each sees all of its prompt: a prompt
    is then computed in one piece, and its KV is of no use afterwards."""
    model_folder: str | None = None
    """Where the model's files lie; None where there are none."""
    canary: bytes = b""
    """How it names blocks: what `BlockNames.canary` gave in the engine's process; empty where nobody asked."""
    identity_trouble: str = ""
    """What the check at load found wrong with the promise of equal tokens; empty when nothing was."""
    arithmetic: str = ""
    """Class of its arithmetic, as found when the model was loaded: engines with equal ones compute the same bits."""


class KvAccess(Protocol):
    """Reads and writes blocks that the caller holds by an export, an import or a pin; any thread."""

    @property
    def layout(self) -> BlockLayout:
        """Shape of the blocks."""
        ...

    def read(
        self, block_ids: Sequence[int], first_layer: int, num_layers: int, target: memoryview
    ) -> None:
        """Copy elements of the blocks, in C order [layer, 2, block, slot, kv head, head dim].

        `target` is writable bytes; KvIntegrityError unless it has the size of the elements.
        """
        ...

    def write(
        self,
        block_ids: Sequence[int],
        first_layer: int,
        num_layers: int,
        payload: bytes | memoryview,
    ) -> None:
        """Fill the blocks with what `read` gave elsewhere, as one piece; KvIntegrityError on a wrong size."""
        ...


StepListener = Callable[[StepOutput], None]


class Engine(Protocol):
    """Continuous batching over paged KV. All methods may be called from any thread and return at once."""

    @property
    def info(self) -> EngineInfo:
        """Facts that do not change while the engine lives."""
        ...

    @property
    def kv(self) -> KvAccess:
        """Access to the paged KV for exports and imports."""
        ...

    def start(self, listener: StepListener) -> None:
        """Start computing; `listener` is called after every step that made something known.

        And within a step when a layer of an export is ready. On which thread depends on the engine; calls
        never overlap.
        """
        ...

    def submit(self, request: EngineRequest) -> None:
        """Queue a request. A request that can never run is answered with an ERROR output."""
        ...

    def cancel(self, request_id: str) -> None:
        """End a request with CANCELLED; unknown ids are ignored. Leased blocks stay until the lease ends."""
        ...

    def release(self, request_id: str) -> None:
        """End an export's lease: cancel what still runs and free its blocks; unknown ids are ignored."""
        ...

    def first_token(
        self, request_id: str, token_id: int, logprobs: TokenLogprobs | None = None
    ) -> None:
        """Import: report the first token, sampled elsewhere, before all KV is here; at most once.

        Without the `logprobs` that the request asks for, the token is sampled here instead. So is one that is
        not in the vocabulary or that the structured output does not allow, and that of a request which
        exports as well.
        """
        ...

    def finish_import(self, request_id: str, num_valid_tokens: int) -> None:
        """End an import's lease.

        KV of the request's tokens [0, num_valid_tokens) is in the blocks and verified (the held prefix
        counts); whatever is missing is computed locally.
        """
        ...

    def pin(self, request_id: str, block_hashes: Sequence[bytes]) -> Future[tuple[int, ...]]:
        """Own the longest cached run of the named blocks until `release(request_id)`; gives their ids.

        Resolved between two steps. `release` must be called also when the future was given up.
        """
        ...

    def publish_snapshot(self) -> None:
        """Have the next StepOutput carry `cache_snapshot`: the names of all cached blocks at that moment."""
        ...

    def load(self) -> EngineLoad:
        """The present load."""
        ...

    def stop(self) -> None:
        """Cancel everything, deliver the last outputs, end. Idempotent."""
        ...
