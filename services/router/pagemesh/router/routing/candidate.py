"""The nouns of routing: what a policy sees of a worker and of a request."""

from __future__ import annotations

import enum
from dataclasses import dataclass

from pagemesh.engine.interface import BlockLayout


class Role(enum.Enum):
    """What a worker serves."""

    PREFILL = "prefill"
    DECODE = "decode"


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

    epoch: int = 1
    """Of this incarnation of the worker."""

    reachable: bool = True
    """A decode worker: its session is open. A prefill worker: always, as a failed one costs little."""

    num_requests: int = 0
    """Requests that run or wait there, those just sent by this router included."""

    num_held_blocks: int = 0
    """Leading blocks of the prompt in its prefix cache."""


@dataclass(frozen=True, slots=True)
class RouteRequest:
    """What a decision depends on besides the workers."""

    model_name: str
    num_prompt_tokens: int

    num_total_tokens: int
    """Prompt plus the most that may be generated."""

    first_block_hash: bytes = b""
    """Name of the prompt's first block; empty when the prompt fills none or the policy names none."""

    excluded_worker_ids: frozenset[str] = frozenset()
    """Workers that were tried already."""


@dataclass(frozen=True, slots=True)
class Route:
    """The decision."""

    decode: Candidate

    prefill: Candidate | None = None
    """Where the prompt is prefilled; none means on the decode worker itself."""
