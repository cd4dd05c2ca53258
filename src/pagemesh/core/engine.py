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

from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Literal, Protocol

from pagemesh.cache.block_hash import BlockHasher, CacheDigest
from pagemesh.core.kv import KvAccess, KvExport, KvGrant, KvLayout, KvProgress
from pagemesh.core.load import EngineLoad
from pagemesh.core.request import EngineRequest, RequestOutput
from pagemesh.sampling.logprobs import TokenLogprobs


@dataclass(frozen=True, slots=True)
class Pooling:
    """How one vector is made of the normed hidden states of a prompt's tokens."""

    kind: Literal["last", "mean", "cls"]
    """The last token's state, the mean over all tokens, or the first token's state."""

    normalize: bool
    """Whether the vector is scaled to a length of 1."""


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
    """After `publish_snapshot`: hashes of all cached blocks after this step's stores and removals."""
    cache_digest: CacheDigest | None = None
    """Of all cached blocks after this step's stores and removals; None where the cache did not change and no
    snapshot was asked for."""
    load: EngineLoad = field(default_factory=EngineLoad)


@dataclass(frozen=True, slots=True)
class EngineInfo:
    """What a worker announces about its engine."""

    model_fingerprint: str
    """Hex digest over weights, dtype and architecture."""
    layout: KvLayout
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
    caches_prefixes: bool = True
    """Whether KV of prompts that are over is found again."""
    model_folder: str | None = None
    """Where the model's files lie; None where there are none."""
    canary: bytes = b""
    """How it hashes blocks: what `BlockHasher.canary` gave in the engine's process; empty where nobody asked."""
    identity_trouble: str = ""
    """What the check at load found wrong with the promise of equal tokens; empty when nothing was."""
    arithmetic: str = ""
    """Class of its arithmetic, as found when the model was loaded: engines with equal ones compute the same bits."""
    quantization: str = ""
    """How its weights are quantised, by the checkpoint's method or the way of doing so; empty for dense ones."""

    def hasher(self) -> BlockHasher:
        """What hashes its blocks."""
        layout = self.layout
        return BlockHasher(self.model_fingerprint, layout.block_size, layout.dtype, self.arithmetic)


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
        """Own the longest cached run of these blocks until `release(request_id)`; gives their ids.

        Resolved between two steps. `release` must be called also when the future was given up.
        """
        ...

    def publish_snapshot(self) -> None:
        """Have the next StepOutput carry `cache_snapshot`: the hashes of all cached blocks at that moment."""
        ...

    def load(self) -> EngineLoad:
        """The present load."""
        ...

    def stop(self) -> None:
        """Cancel everything, deliver the last outputs, end. Idempotent."""
        ...
