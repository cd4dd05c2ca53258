"""One request on one modelled engine. Plain data, changed by `engine.py` and `tables.py`."""

from __future__ import annotations

import enum
from dataclasses import dataclass, field
from typing import Protocol

from pagemesh.sim.trace import TraceRequest


class JobState(enum.Enum):
    """Where a job is in its life, as `scheduler.request.RequestState` has it."""

    WAITING = "waiting"
    WAITING_KV = "waiting_kv"
    RUNNING = "running"
    FINISHED = "finished"


class JobOwner(Protocol):
    """Who is told what becomes of a job. Called between two steps of its engine."""

    def on_first_token(self, job: Job) -> None:
        """The first token is there."""
        ...

    def on_end(self, job: Job) -> None:
        """The job has all its tokens."""
        ...

    def on_grant(self, job: Job) -> None:
        """An import was given blocks; whoever fills them calls `Engine.finish_import`, exactly once."""
        ...

    def on_chunk(self, job: Job, start: int, end: int, *, is_computed: bool) -> None:
        """Tokens of an export begin to be computed, or are."""
        ...


@dataclass(slots=True, eq=False)
class Job:
    """A request from its submission to an engine until its last block there is free."""

    owner: JobOwner

    request: TraceRequest

    max_total_tokens: int
    """It ends when it has so many."""

    names: list[bytes]
    """Of all full blocks that it may ever have."""

    num_tokens: int
    """Prompt and what was generated."""

    is_export: bool = False
    """Generates one token; its blocks stay as long as it `is_held`."""

    awaits_kv: bool = False
    """KV may still come from outside."""

    is_leased: bool = False
    """Somebody outside writes its blocks."""

    is_held: bool = False
    """Of an export: somebody outside reads its blocks, from its submission on."""

    arrival: int = 0
    """Number in order of submission; 0 before it."""

    state: JobState = JobState.WAITING

    num_computed_tokens: int = 0
    """Leading tokens whose KV is in the blocks."""

    block_ids: list[int] = field(default_factory=list)
    """The block table."""

    num_stored_blocks: int = 0
    """Leading blocks that were offered to the prefix cache."""

    num_cached_tokens: int | None = None
    """Found in the prefix cache at the first admission."""

    num_received_tokens: int = 0
    """Of the prompt, whose KV came from elsewhere."""

    last_token_at: float = -1.0
    """When the last token came; below zero before the first."""

    @property
    def num_prompt_tokens(self) -> int:
        """Length of the prompt."""
        return self.request.num_prompt_tokens

    @property
    def num_generated_tokens(self) -> int:
        """Tokens behind the prompt."""
        return self.num_tokens - self.num_prompt_tokens

    @property
    def num_uncomputed_tokens(self) -> int:
        """Known tokens whose KV is missing."""
        return self.num_tokens - self.num_computed_tokens
