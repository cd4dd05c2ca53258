"""Block tables of the jobs of one modelled engine over a real `BlockPool`.

The rules are those of `scheduler.kv_cache`, without forks, swap space and the tokens themselves.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from pagemesh.cache.block_pool import BlockPool, CacheEvents
from pagemesh.sim.job import Job


class Reservation(NamedTuple):
    """Blocks that a job could get."""

    shared: list[int]
    num_fresh: int
    num_tokens: int
    """Leading tokens whose KV is there."""
    copied: list[int]
    """The cached block behind the shared ones, if its copy brings some of these."""


class Tables:
    """Gives jobs their blocks, and names to blocks that are full."""

    def __init__(self, num_blocks: int, block_size: int) -> None:
        self.pool = BlockPool(num_blocks)
        self._block_size = block_size

    def propose(self, job: Job) -> Reservation:
        """Blocks for all known tokens and the next one; nothing is changed."""
        num_skippable = job.num_tokens - 1
        if job.awaits_kv:
            num_skippable = min(num_skippable, job.num_prompt_tokens - 1)
        num_full, num_more = divmod(num_skippable, self._block_size)
        is_copied = num_more > 0 and not job.awaits_kv
        hits = self.pool.longest_cached_prefix(job.names[: num_full + is_copied])
        shared, copied = hits[:num_full], hits[num_full:]
        num_blocks = self._num_blocks(min(job.num_tokens + 1, job.max_total_tokens - 1))
        num_fresh = num_blocks - len(shared)
        if copied:
            partly = Reservation(shared, num_fresh, num_skippable, copied)
            if self.can_take(partly, 0):
                return partly
        return Reservation(shared, num_fresh, len(shared) * self._block_size, [])

    def can_take(self, reservation: Reservation, num_spare: int) -> bool:
        """Whether there are these blocks and some more."""
        keeping = [*reservation.shared, *reservation.copied]
        return self.pool.can_allocate(reservation.num_fresh + num_spare, keeping=keeping)

    def take(self, job: Job, reservation: Reservation) -> None:
        """Give the job what was just proposed."""
        shared, num_fresh, num_tokens, copied = reservation
        self.pool.acquire([*shared, *copied])
        job.block_ids = [*shared, *self.pool.allocate(num_fresh)]
        self.pool.free(copied)
        job.num_stored_blocks = len(shared)
        job.num_computed_tokens = num_tokens
        if job.num_cached_tokens is None:
            job.num_cached_tokens = job.num_computed_tokens

    def num_missing(self, job: Job, num_steps: int) -> int:
        """Blocks that the job lacks for so many decodes."""
        return max(0, self._num_blocks(job.num_computed_tokens + num_steps) - len(job.block_ids))

    def num_missing_of(self, jobs: Iterable[Job], num_steps: int) -> int:
        """Likewise, of several jobs."""
        return sum(self.num_missing(job, num_steps) for job in jobs)

    def grow(self, job: Job, num_steps: int = 1) -> bool:
        """Make room for so many decodes; False when there are too few blocks."""
        # Asked of every decode of every step: `num_missing` without the calls.
        num_tokens = job.num_computed_tokens + num_steps
        num_missing = -(-num_tokens // self._block_size) - len(job.block_ids)
        if num_missing <= 0:
            return True
        if not self.pool.can_allocate(num_missing):
            return False
        job.block_ids += self.pool.allocate(num_missing)
        return True

    def mark_computed(self, job: Job, num_computed_tokens: int) -> None:
        """The KV of the first tokens is there; full blocks enter the prefix cache."""
        job.num_computed_tokens = num_computed_tokens
        num_full = num_computed_tokens // self._block_size
        if num_full > job.num_stored_blocks:
            for index in range(job.num_stored_blocks, num_full):
                self.pool.store(job.block_ids[index], job.names[index])
            job.num_stored_blocks = num_full

    def free(self, job: Job) -> None:
        """Give all blocks back."""
        self.pool.free(job.block_ids)
        job.block_ids = []
        job.num_computed_tokens = job.num_stored_blocks = 0

    def drain_events(self) -> CacheEvents:
        """What changed in the prefix cache."""
        return self.pool.drain_events()

    def _num_blocks(self, num_tokens: int) -> int:
        return -(-num_tokens // self._block_size)
