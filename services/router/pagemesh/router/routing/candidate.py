"""The nouns of routing: what a policy sees of a worker and of a request."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple

from pagemesh.engine.interface import BlockLayout
from pagemesh.engine.prefill_rate import PrefillRate
from pagemesh.router.routing.cost import Link


class Role(enum.Enum):
    """What a worker serves."""

    PREFILL = "prefill"
    DECODE = "decode"


class LinkUse(NamedTuple):
    """What the requests of this router keep of a link."""

    num_requests: int
    """Requests that use it, or are about to."""
    busy_seconds: float
    """Until all of theirs is through, as far as that was predicted."""


NO_USE: Final = LinkUse(0, 0.0)


@dataclass(frozen=True, slots=True)
class Candidate:
    """A worker at the moment of one decision."""

    worker_id: str
    role: Role
    address: str
    model_name: str
    model_fingerprint: str
    layout: BlockLayout
    max_model_len: int
    max_num_seqs: int

    epoch: int
    """Of this incarnation of the worker."""

    reachable: bool
    """A decode worker: its session is open. A prefill worker: always, as a failed one costs little."""

    num_requests: int
    """Requests that run or wait there, those just sent by this router included."""

    num_held_blocks: int
    """Leading blocks of the prompt in its prefix cache; none of a degraded worker."""

    block_naming: bytes
    """Equal between workers that give equal blocks equal names: only those can exchange KV."""

    num_running: int
    """Requests in its batch, as it last reported."""

    prefill_rate: PrefillRate
    """How long prompts take there."""

    num_pending_tokens: int
    """Tokens of prompts that it has to compute, as it last reported."""

    own_queue_seconds: float
    """Until it has computed what this router sent there, as far as that was predicted."""

    links: Mapping[str, Link]
    """Links to it that were measured, by the sender's id."""

    own_transfers: Mapping[str, LinkUse]
    """What this router has sent over links to it, by the sender's id."""


@dataclass(frozen=True, slots=True)
class RouteRequest:
    """What a decision depends on besides the workers."""

    model_name: str
    num_prompt_tokens: int

    num_total_tokens: int
    """Prompt plus the most that may be generated."""

    first_block_hash: bytes
    """Name of the prompt's first block; empty when the prompt fills none or the policy names none."""

    excluded_worker_ids: frozenset[str]
    """Workers that were tried already."""

    is_prefillable: bool
    """Whether KV may come from elsewhere; else the prompt is computed where it runs."""
