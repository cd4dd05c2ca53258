"""What a modelled engine's next step computes: the rules of `pagemesh.scheduler`, without tokens.

Decodes first, then chunks of prompts, both by arrival; who waits is admitted in order, when there are blocks for
the prompt and some to grow; who finds no block takes those of the last one.
"""

from __future__ import annotations

from bisect import insort
from collections import deque
from operator import attrgetter
from typing import Final

from pagemesh.scheduler.estimates import LENGTH_MEMORY, PRIOR_LENGTH, SHARE
from pagemesh.sim.job import Job, JobState
from pagemesh.sim.model import WorkerModel
from pagemesh.sim.step import Chunk, Step
from pagemesh.sim.tables import Reservation, Tables

MAX_STEPS_BESIDE_QUEUE: Final = 16
"""Steps in one run while somebody waits for blocks; whether there are enough is looked at for each."""

_by_arrival = attrgetter("arrival")


class StepPlanner:
    """Owns the queues of one engine: who waits, and who has a seat in the batch."""

    def __init__(self, model: WorkerModel, tables: Tables, block_size: int) -> None:
        self._model = model
        self._tables = tables
        self._block_size = block_size
        self._mean_length = PRIOR_LENGTH
        self.waiting: list[Job] = []
        self.seated: list[Job] = []
        self.num_waiting_tokens = 0
        """Prompt tokens to be computed for those that wait."""
        self.num_preemptions = 0
        # Of who waits first, when blocks are all that it lacks.
        self._wanted: Reservation | None = None
        self.granted: list[Job] = []
        """Imports that were given blocks since this was last emptied."""

    def add(self, job: Job) -> None:
        """Let it wait."""
        job.state = JobState.WAITING
        insort(self.waiting, job, key=_by_arrival)
        self.num_waiting_tokens += _num_pending(job)

    def remove(self, job: Job) -> None:
        """It is over."""
        if job.state is JobState.WAITING:
            self.waiting.remove(job)
            self.num_waiting_tokens -= _num_pending(job)
        else:
            self.seated.remove(job)
        job.state = JobState.FINISHED

    def observe_length(self, num_tokens: int) -> None:
        """An answer ended with so many tokens."""
        self._mean_length = LENGTH_MEMORY * self._mean_length + (1 - LENGTH_MEMORY) * num_tokens

    def plan(self, now: float) -> Step | None:
        """The next step, or run of steps; None when nothing can be computed."""
        step = Step(now)
        self._wanted = None
        prefilling = self._plan_decodes(step)
        self._plan_prefills(step, prefilling)
        step.decode_pairs = sum(job.num_computed_tokens + 1 for job in step.decodes) + sum(
            chunk.end for chunk in step.chunks if chunk.costs_like_a_decode
        )
        if not step.chunks:
            if not step.decodes:
                return None
            step.num_steps = self._num_equal_steps(step)
        return step

    def _plan_decodes(self, step: Step) -> list[Job]:
        """Add the decodes; gives the prompts in progress."""
        prefilling = []
        for job in tuple(self.seated):
            if job.state is not JobState.RUNNING:
                continue
            if job.num_uncomputed_tokens > 1:
                prefilling.append(job)
            elif self._make_room(job):
                step.decodes.append(job)
        return prefilling

    def _plan_prefills(self, step: Step, prefilling: list[Job]) -> None:
        in_progress = deque(prefilling)
        budget = self._model.max_num_batched_tokens - len(step.decodes)
        while self.waiting:
            job = self.waiting[0]
            while in_progress and in_progress[0].arrival < job.arrival:
                budget -= _add(step, in_progress.popleft(), budget)
            if not self._admit(job, budget):
                break
            if job.state is JobState.RUNNING:
                budget -= _add(step, job, budget)
        for job in in_progress:
            budget -= _add(step, job, budget)

    def _admit(self, job: Job, budget: int) -> bool:
        if not (budget > 0 or job.awaits_kv) or len(self.seated) >= self._model.max_num_seqs:
            return False
        reservation = self._tables.propose(job)
        if not self._tables.can_take(reservation, self._num_blocks_to_grow(0)):
            self._wanted = reservation
            return False
        self.waiting.pop(0)
        self.num_waiting_tokens -= _num_pending(job)
        insort(self.seated, job, key=_by_arrival)
        self._tables.take(job, reservation)
        if job.awaits_kv:
            job.state = JobState.WAITING_KV
            job.is_leased = True
            self.granted.append(job)
        else:
            job.state = JobState.RUNNING
        return True

    def _num_blocks_to_grow(self, num_steps: int) -> int:
        """Blocks that should remain free for those that run and who waits first, after so many decodes."""
        if not self.seated:
            return 0
        share = round(SHARE * self._mean_length)
        first = self.waiting[0]
        growth = min(share, first.max_total_tokens - first.num_tokens)
        for job in self.seated:
            left = job.max_total_tokens - job.num_tokens
            if job.state is JobState.RUNNING:
                left -= num_steps
            growth += min(share, left)
        return growth // self._block_size

    def _make_room(self, job: Job) -> bool:
        """Get a decode its block; False when it was preempted itself."""
        while not self._tables.grow(job):
            victim = next(
                other
                for other in reversed(self.seated)
                if other.state is JobState.RUNNING and not (other.is_leased or other.is_held)
            )
            self._preempt(victim)
            if victim is job:
                return False
        return job.state is JobState.RUNNING

    def _preempt(self, job: Job) -> None:
        self._tables.free(job)
        self.seated.remove(job)
        self.num_preemptions += 1
        self.add(job)

    def _num_equal_steps(self, step: Step) -> int:
        """Steps of decodes until one ends, or blocks run out."""
        if any(job.last_token_at < 0 for job in step.decodes):
            # First tokens are told at once.
            return 1
        most = min(job.max_total_tokens - job.num_tokens for job in step.decodes)
        num_free = self._tables.pool.num_free_blocks
        if self._wanted is not None:
            return self._num_steps_to_admission(step, self._wanted, most)
        if self._tables.num_missing_of(step.decodes, most) <= num_free:
            return most
        least = 1
        while least < most:
            middle = (least + most + 1) // 2
            if self._tables.num_missing_of(step.decodes, middle) <= num_free:
                least = middle
            else:
                most = middle - 1
        return least

    def _num_steps_to_admission(self, step: Step, wanted: Reservation, most: int) -> int:
        """Steps until who waits first may find room, since those that run need less and less to grow."""
        num_free = self._tables.pool.num_free_blocks
        last = min(most, MAX_STEPS_BESIDE_QUEUE)
        for num_steps in range(1, last):
            num_missing = self._tables.num_missing_of(step.decodes, num_steps + 1)
            if num_missing > num_free:
                return num_steps
            num_spare = self._tables.num_missing_of(step.decodes, num_steps)
            if self._tables.can_take(wanted, num_spare + self._num_blocks_to_grow(num_steps)):
                return num_steps
        return last


def _add(step: Step, job: Job, budget: int) -> int:
    """Compute as many tokens as fit in; gives their number."""
    start = job.num_computed_tokens
    end = min(job.num_tokens, start + budget)
    if end <= start:
        return 0
    step.chunks.append(Chunk(job, start, end))
    return end - start


def _num_pending(job: Job) -> int:
    return 0 if job.awaits_kv else job.num_uncomputed_tokens
