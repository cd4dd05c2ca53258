"""The workers that can exchange KV with each other, as one prompt sees them. Shared by all of a decision's ways."""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import Final

from pagemesh.core.load import PrefillRate
from pagemesh.router.routing.candidate import Candidate, KvKind, Role, RouteRequest
from pagemesh.router.routing.cost import Prompt, Site

MAX_SOURCES: Final = 4
"""Holders that are considered as sources, those of the longest prefixes."""


class Peers:
    """Reachable workers whose KV is of one kind, none of them tried before."""

    def __init__(
        self,
        kv_kind: KvKind,
        candidates: Sequence[Candidate],
        request: RouteRequest,
    ) -> None:
        self.request = request
        self._kv_kind = kv_kind
        self._candidates = candidates
        layout = kv_kind.layout
        self.prompt = Prompt(
            request.num_prompt_tokens, layout.num_bytes / layout.block_size, layout.num_layers
        )
        self._sites: dict[str, Site] = {}

    @cached_property
    def is_measured(self) -> bool:
        """Whether anything is known of how long prompts take."""
        return any(c.facts.prefill_rate.is_known and self._has(c) for c in self._candidates)

    @cached_property
    def prefill_workers(self) -> list[Candidate]:
        """Those that can compute the prompt."""
        return [
            c
            for c in self._candidates
            # A token more, the first of the output.
            if c.facts.role is Role.PREFILL
            and self.prompt.num_tokens < c.facts.max_model_len
            and self._has(c)
        ]

    @cached_property
    def prefill_workers_by_end(self) -> list[Candidate]:
        """Those, the one that would have computed the prompt first in front."""
        return sorted(self.prefill_workers, key=self._end_seconds)

    def sources_beyond(self, worker: Candidate) -> Iterator[Candidate]:
        """Those that hold most of the prompt, and more than a worker that would pull."""
        for source in self._sources:
            if source is not worker and source.num_held_blocks > worker.num_coming_blocks:
                yield source

    def site(self, worker: Candidate) -> Site:
        """A worker as one that computes."""
        site = self._sites.get(worker.worker_id)
        if site is None:
            site = self._sites[worker.worker_id] = self._make_site(worker)
        return site

    @cached_property
    def _sources(self) -> list[Candidate]:
        holders = (c for c in self._candidates if c.num_held_blocks and self._has(c))
        return heapq.nsmallest(
            MAX_SOURCES, holders, key=lambda c: (-c.num_held_blocks, c.worker_id)
        )

    def _make_site(self, worker: Candidate) -> Site:
        facts = worker.facts
        rate = facts.prefill_rate if facts.prefill_rate.is_known else self._assumed
        reported = rate.queue_seconds(facts.num_pending_tokens)
        whole_step = rate.queue_seconds(rate.num_tokens_per_step)
        assert reported is not None, "the rate is known"
        assert whole_step is not None, "the rate is known"
        queue = max(reported, worker.own.queue_seconds)
        # In the middle of a step, if there is one.
        step = min(queue, whole_step) or (rate.seconds_per_step if facts.num_running else 0.0)
        # What is computed there for earlier requests is there when this one's turn comes.
        num_held_tokens = min(worker.num_coming_tokens, self.prompt.num_tokens)
        return Site(rate, queue, num_held_tokens, answer_seconds=step / 2)

    @cached_property
    def _assumed(self) -> PrefillRate:
        """Of whoever did not compute anything yet: that of the fastest that did, so that it is tried."""
        rates = (c.facts.prefill_rate for c in self._candidates if self._has(c))
        return min((rate for rate in rates if rate.is_known), key=self._whole_prompt_seconds)

    def _has(self, candidate: Candidate) -> bool:
        """Whether it is one of them."""
        return (
            candidate.reachable
            and candidate.facts.kv_kind == self._kv_kind
            and candidate.worker_id not in self.request.excluded_worker_ids
        )

    def _whole_prompt_seconds(self, rate: PrefillRate) -> float:
        seconds = rate.seconds(self.prompt.num_tokens, 0)
        assert seconds is not None, "the rate is known"
        return seconds

    def _end_seconds(self, worker: Candidate) -> float:
        site = self.site(worker)
        num_left = max(1, self.prompt.num_tokens - site.num_held_tokens)
        seconds = site.rate.seconds(num_left, self.prompt.num_tokens - num_left)
        assert seconds is not None, "a site has a known rate"
        return site.queue_seconds + seconds
