"""How busy an engine is, and what prompts cost it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from pagemesh.cache.swap_space import SwapTotals


def num_pairs(num_tokens: int, num_held_tokens: int) -> int:
    """Pairs of a token to compute and one that it attends to, itself included, behind a held prefix."""
    return num_tokens * num_held_tokens + num_tokens * (num_tokens + 1) // 2


class PrefillRate(NamedTuple):
    """What prompts cost an engine at present. All zeros: nothing was measured yet."""

    seconds_per_token: float = 0.0
    """What each token costs by itself."""

    seconds_per_pair: float = 0.0
    """What each pair of a token and one that it attends to costs, see `num_pairs`."""

    seconds_per_step: float = 0.0
    """What each engine step costs besides, with the decodes that run beside the prompt now."""

    num_tokens_per_step: int = 0
    """Most tokens of prompts in one step; 0 when nothing was measured."""

    num_pairs_per_token: float = 0.0
    """Mean of the prompts that were computed lately, for tokens of which no more is known."""

    @property
    def is_known(self) -> bool:
        """Whether anything was measured."""
        return self.num_tokens_per_step > 0

    def seconds(self, num_tokens: int, num_held_tokens: int) -> float | None:
        """Time to compute the last `num_tokens` of a prompt, behind a prefix of `num_held_tokens`.

        None when nothing was measured.
        """
        return self._seconds(num_tokens, num_pairs(num_tokens, num_held_tokens))

    def queue_seconds(self, num_tokens: int) -> float | None:
        """Time for tokens of prompts of which no more is known; None when nothing was measured."""
        return self._seconds(num_tokens, num_tokens * self.num_pairs_per_token)

    def _seconds(self, num_tokens: int, pairs: float) -> float | None:
        if not self.is_known:
            return None
        num_steps = -(-num_tokens // self.num_tokens_per_step)
        return (
            num_tokens * self.seconds_per_token
            + pairs * self.seconds_per_pair
            + num_steps * self.seconds_per_step
        )


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


class CoreTotals(NamedTuple):
    """What sharing cores brought and cost one worker, since it was started."""

    borrowed_seconds: float = 0.0
    """Core-seconds that it had beyond its share."""

    wait_seconds: float = 0.0
    """Seconds that its steps waited for cores of its share."""


class LinkSpeed(NamedTuple):
    """One link to a worker, as measured there."""

    worker_id: str
    """The sender."""
    bytes_per_second: float
    """0 when the streams were too short, or their senders too busy, to tell."""
    latency_seconds: float
    """From a call to its first message."""


@dataclass(frozen=True, slots=True)
class EngineLoad:
    """How busy the engine is."""

    num_running: int = 0
    num_waiting: int = 0
    num_queued: int = 0
    """Of the waiting requests, those without a place in the batch."""
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
