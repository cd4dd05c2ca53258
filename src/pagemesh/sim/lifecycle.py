"""How jobs begin and end on a modelled engine, and who keeps their blocks: everything that is asked from outside.

The rules are those of `scheduler.request_table`. All methods are called between two steps.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from pagemesh.sim.clock import Clock
from pagemesh.sim.job import Job, JobState
from pagemesh.sim.planner import StepPlanner
from pagemesh.sim.step import Chunk, Step
from pagemesh.sim.tables import Tables


class EngineListener(Protocol):
    """Who is told of the engine as a whole; jobs have owners. Called between two steps."""

    def on_tokens(self, num_gaps: int, seconds: float) -> None:
        """So many tokens came, each so long after the one in front of it."""
        ...

    def on_change(self) -> None:
        """Load or cache may have changed."""
        ...


class Jobs:
    """All jobs of one engine."""

    def __init__(
        self, clock: Clock, planner: StepPlanner, tables: Tables, listener: EngineListener
    ) -> None:
        self._clock = clock
        self._planner = planner
        self._tables = tables
        self._listener = listener
        self._num_submitted = 0

    def submit(self, job: Job) -> None:
        """Take a job in."""
        self._num_submitted += 1
        job.arrival = self._num_submitted
        self._planner.add(job)

    def first_token(self, job: Job) -> None:
        """An import's first token came from elsewhere."""
        if job.state is JobState.WAITING_KV and job.num_generated_tokens == 0:
            self._append(job)

    def finish_import(self, job: Job, num_valid_tokens: int) -> None:
        """KV of the prompt's first tokens is in the blocks, the rest is computed here."""
        job.awaits_kv = job.is_leased = False
        if job.state is JobState.FINISHED:
            self._free_if_over(job)
            return
        job.num_received_tokens = max(0, num_valid_tokens - job.num_computed_tokens)
        num_computed = max(job.num_computed_tokens, min(num_valid_tokens, job.num_tokens - 1))
        self._tables.mark_computed(job, num_computed)
        job.state = JobState.RUNNING

    def end(self, job: Job) -> None:
        """Nobody wants the rest of it, nor the blocks of an export."""
        job.is_held = False
        if job.state is not JobState.FINISHED:
            self._planner.remove(job)
        self._free_if_over(job)

    def pin(self, names: Sequence[bytes]) -> list[int]:
        """Hold the longest cached run of blocks."""
        block_ids = self._tables.pool.longest_cached_prefix(names)
        self._tables.pool.acquire(block_ids)
        return block_ids

    def unpin(self, block_ids: list[int]) -> None:
        """Let go of them."""
        self._tables.pool.free(block_ids)

    def end_chunk(self, chunk: Chunk) -> None:
        """A chunk of a prompt is computed."""
        job, start, end = chunk.job, chunk.start, chunk.end
        if job.state is JobState.RUNNING:
            self._tables.mark_computed(job, end)
            if job.num_uncomputed_tokens == 0:
                self._append(job)
            if job.is_export:
                job.owner.on_chunk(job, start, end, is_computed=True)

    def end_decodes(self, job: Job, step: Step, first_seconds: float) -> None:
        """So are a job's decodes; the first of them took `first_seconds`."""
        if job.state is not JobState.RUNNING:
            return
        more = step.num_steps - 1
        start = job.num_computed_tokens
        self._tables.mark_computed(job, start + step.num_steps)
        if more:
            gap = step.began_at + first_seconds - job.last_token_at
            self._listener.on_tokens(1, gap)
            job.num_tokens += more
            job.last_token_at = self._clock.now
            rest = self._clock.now - step.began_at - first_seconds
            self._listener.on_tokens(more, rest / more)
            # The last of the run is told of like any other.
            job.num_tokens += 1
            self._end_if_complete(job)
        else:
            self._append(job)
        if job.is_export:
            job.owner.on_chunk(job, start, start + 1, is_computed=True)

    def _append(self, job: Job) -> None:
        job.num_tokens += 1
        is_first = job.last_token_at < 0
        if not is_first:
            self._listener.on_tokens(1, self._clock.now - job.last_token_at)
        job.last_token_at = self._clock.now
        if is_first:
            job.owner.on_first_token(job)
        self._end_if_complete(job)

    def _end_if_complete(self, job: Job) -> None:
        if job.num_tokens == job.max_total_tokens:
            self._finish(job)

    def _finish(self, job: Job) -> None:
        self._planner.observe_length(job.num_generated_tokens)
        self._planner.remove(job)
        self._free_if_over(job)
        job.owner.on_end(job)

    def _free_if_over(self, job: Job) -> None:
        if not (job.is_leased or job.is_held):
            self._tables.free(job)
