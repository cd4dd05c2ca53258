"""The nouns of routing: what a decision sees of a worker and of a request."""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Final, NamedTuple

from pagemesh.core.kv import KvLayout
from pagemesh.core.load import PrefillRate
from pagemesh.router.routing.cost import Link


class Role(enum.Enum):
    """What a worker serves."""

    PREFILL = "prefill"
    DECODE = "decode"


class Naming(NamedTuple):
    """What the names of a prompt's blocks depend on besides the prompt."""

    model_fingerprint: str
    block_size: int
    kv_dtype: str
    arithmetic: str = ""


class KvKind(NamedTuple):
    """Only workers for which this is equal can exchange KV."""

    model_fingerprint: str
    arithmetic: str
    layout: KvLayout
    block_naming: bytes


@dataclass(frozen=True)
class WorkerFacts:
    """What a worker said: who it is, and how busy and how fast at its last report.

    Made anew when it says something else, and shared by all decisions until then.
    """

    worker_id: str
    role: Role
    address: str

    epoch: int
    """Of this incarnation of the worker."""

    model_name: str
    model_fingerprint: str
    layout: KvLayout

    block_naming: bytes
    """Equal between workers that give equal blocks equal names."""

    max_model_len: int
    max_num_seqs: int

    num_blocks: int
    """In its pool; 0 when it does not say."""

    arithmetic: str = ""
    """The class of its arithmetic; empty when it does not say, which is a class too."""

    is_degraded: bool = False
    """Whether it names blocks otherwise than the router: what is found under the router's names is chance."""

    caches_prefixes: bool = True
    """Whether it finds KV of prompts that are over again."""

    quantization: str = ""
    """How its weights are quantised; empty for dense ones."""

    num_running: int = 0
    """Requests in its batch."""

    num_waiting: int = 0
    """Requests that wait there."""

    num_queued: int = 0
    """Of these, those without a seat: the others wait for KV on its way."""

    num_pending_tokens: int = 0
    """Tokens of prompts that it has to compute."""

    num_free_blocks: int = 0
    """Blocks that no request owns, cached ones included; all of them before the first report."""

    num_preemptions: int = 0
    """Times that a request lost its blocks there, since it was started."""

    num_swap_blocks: int = 0
    """Blocks of its swap space."""

    num_used_swap_blocks: int = 0
    """Of these, those that hold KV."""

    reported_at: float | None = None
    """When the last report came, in seconds of the decider's clock; None before the first."""

    prefill_rate: PrefillRate = field(default_factory=PrefillRate)
    """How long prompts take there."""

    links: Mapping[str, Link] = field(default_factory=dict)
    """Links to it that were measured, by the sender's id."""

    @cached_property
    def kv_kind(self) -> KvKind:
        """Of the KV that it computes."""
        return KvKind(self.model_fingerprint, self.arithmetic, self.layout, self.block_naming)

    @cached_property
    def naming(self) -> Naming:
        """How it names blocks."""
        layout = self.layout
        return Naming(self.model_fingerprint, layout.block_size, layout.dtype, self.arithmetic)


class LinkUse(NamedTuple):
    """What the requests of this router keep of a link."""

    num_requests: int
    """Requests that use it, or are about to."""
    busy_seconds: float
    """Until all of theirs is through, as far as that was predicted."""


NO_USE: Final = LinkUse(0, 0.0)


class OwnLoad(NamedTuple):
    """What the requests of this router keep of a worker."""

    num_requests: int = 0
    """Requests in flight there."""

    num_unreported: int = 0
    """Of these, those that its last report does not know of."""

    num_unreported_blocks: int = 0
    """KV blocks that they will take."""

    num_gone: int = 0
    """Requests in its last report that are over."""

    queue_seconds: float = 0.0
    """Until it has computed the prompts that were sent there, as far as that was predicted."""

    transfers: Mapping[str, LinkUse] = {}
    """What is sent over links to it, by the sender's id."""


NO_LOAD: Final = OwnLoad()


class Candidate(NamedTuple):
    """A worker at the moment of one decision."""

    facts: WorkerFacts

    reachable: bool
    """A decode worker: its session is open. A prefill worker: always, as a failed one costs little."""

    is_draining: bool
    """It takes no more requests."""

    num_held_blocks: int
    """Leading blocks of the prompt in its prefix cache; none of a degraded worker."""

    num_coming_blocks: int
    """Leading blocks that are there or are computed there for requests before this one."""

    own: OwnLoad

    @property
    def worker_id(self) -> str:
        """Its name."""
        return self.facts.worker_id

    @property
    def num_requests(self) -> int:
        """Requests that run or wait there, of all routers, as far as is known."""
        facts, own = self.facts, self.own
        num_reported = facts.num_running + facts.num_waiting
        return max(num_reported + own.num_unreported - own.num_gone, own.num_requests)

    @property
    def num_spare_blocks(self) -> int:
        """KV blocks that nobody needs, as far as is known; negative when requests wait for more."""
        facts = self.facts
        num_free = facts.num_free_blocks - self.own.num_unreported_blocks
        if facts.num_waiting:
            # They will take blocks, and have none yet.
            num_free -= facts.num_pending_tokens // facts.layout.block_size
        return num_free

    def num_missing_blocks(self, num_tokens: int) -> int:
        """KV blocks that a request of so many tokens takes beyond those of its prompt that are there."""
        return max(0, -(-num_tokens // self.facts.layout.block_size) - self.num_coming_blocks)

    def num_own_blocks(self, request: RouteRequest) -> int:
        """Leading blocks that are there or coming, behind those that a crowd shares."""
        return max(0, self.num_coming_blocks - request.num_crowd_blocks)

    @property
    def num_held_tokens(self) -> int:
        """Leading tokens of the prompt in its prefix cache, in full blocks."""
        return self.num_held_blocks * self.facts.layout.block_size

    @property
    def num_coming_tokens(self) -> int:
        """Leading tokens of the prompt that are there or are computed there, in full blocks."""
        return self.num_coming_blocks * self.facts.layout.block_size


@dataclass(frozen=True, slots=True)
class RouteRequest:
    """What a decision depends on besides the workers."""

    model_name: str
    num_prompt_tokens: int

    num_total_tokens: int
    """Prompt plus the most that may be generated."""

    block_names: Mapping[Naming, Sequence[bytes]]
    """Names of the prompt's full blocks, in each way in which workers name them; without those that nobody
    asked for, and empty for a prompt that fills none."""

    excluded_worker_ids: frozenset[str]
    """Workers that were tried already."""

    is_prefillable: bool
    """Whether KV may come from elsewhere; else the prompt is computed where it runs."""

    session: bytes = b""
    """At most 64 bytes that requests have in common which belong together; empty for none."""

    num_growth_tokens: int = 0
    """Of the output, as many tokens as are to be expected."""

    affinity: Mapping[Naming, bytes] = field(default_factory=dict)
    """Where names of blocks are known: equal for requests that should meet."""

    num_crowd_blocks: int = 0
    """Leading blocks of the prompt that a crowd shares, see `crowds`."""

    model_fingerprint: str | None = None
    """Of the model that has answered a part of it; None while there is no answer."""

    arithmetic: str | None = None
    """Class of the arithmetic that the answer's tokens until now were made with; None where there are none."""

    @property
    def num_output_tokens(self) -> int:
        """The most that may be generated."""
        return self.num_total_tokens - self.num_prompt_tokens
