"""Measures generations from the client's side."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Final

from pagemesh.router.dispatch.turn import Turn
from pagemesh.router.generation.generation import Generation
from pagemesh.router.generation.generation_metrics import GenerationMetrics, Progress
from pagemesh.router.generation.request import ChoiceDelta, GenerationRequest, Idle, Usage
from pagemesh.router.route_header import Explanation

_WORST_FIRST: Final = ("error", "abort", "", "length", "stop")
_WELL: Final = ("length", "stop")


class InstrumentedGeneration:
    """A generation that is measured while it is read; each choice counts as a request, as in vLLM."""

    def __init__(
        self,
        inner: Generation,
        request: GenerationRequest,
        turn: Turn,
        metrics: GenerationMetrics,
    ) -> None:
        self._inner = inner
        self._request = request
        self._turn = turn
        self._num_answers = len(request.choices) // request.num_prompts
        self._num_cached_tokens = 0
        self._metrics = metrics
        self._start = time.perf_counter()
        self._progress = [Progress() for _ in request.choices]
        self._unfinished = "abort"
        self._is_closed = False

    async def deltas(self) -> AsyncGenerator[ChoiceDelta | Idle, None]:
        """As the inner generation's."""
        try:
            async with aclosing(self._inner.deltas()) as deltas:
                async for delta in deltas:
                    if isinstance(delta, ChoiceDelta):
                        self._observe(delta)
                    yield delta
        except Exception:
            self._unfinished = "error"
            raise

    def usage(self) -> Usage:
        """As the inner generation's."""
        return self._inner.usage()

    @property
    def explanation(self) -> Explanation | None:
        """As the inner generation's."""
        return self._inner.explanation

    @property
    def num_prompts(self) -> int:
        """Of the request."""
        return self._request.num_prompts

    @property
    def end(self) -> str:
        """Why it is over: the worst reason of its choices; empty before that."""
        ends = {progress.end for progress in self._progress}
        return next((end for end in _WORST_FIRST if end in ends), "")

    @property
    def time_to_first_token(self) -> float | None:
        """Seconds until the first token of any choice; None before that."""
        firsts = [progress.first for progress in self._progress if progress.num_tokens]
        return min(firsts) - self._start if firsts else None

    def close(self) -> None:
        """As the inner generation's. Idempotent."""
        self._inner.close()
        if self._is_closed:
            return
        self._is_closed = True
        if all(progress.end in _WELL for progress in self._progress):
            lengths = [progress.num_tokens for progress in self._progress]
            self._metrics.on_request(self._request, lengths)
        for progress in self._progress:
            self._end(progress, self._unfinished)

    def _observe(self, delta: ChoiceDelta) -> None:
        now = time.perf_counter()
        progress, metrics = self._progress[delta.index], self._metrics
        num_tokens = len(delta.token_ids)
        if num_tokens:
            metrics.generation_tokens.inc(num_tokens)
            if not progress.num_tokens:
                self._begin(delta.index, progress, now)
                num_tokens -= 1
            for _ in range(num_tokens):
                # Tokens that came together took equal shares of the time.
                metrics.inter_token_latency.observe((now - progress.last) / num_tokens)
            progress.num_tokens += num_tokens
            progress.last = now
        if delta.stop_reason is not None:
            prompt = self._request.choices[delta.index].prompt_token_ids
            seated_at = self._start + self._turn.queue_seconds
            metrics.on_answer(progress, len(prompt), now - self._start, now - seated_at)
            self._end(progress, delta.stop_reason.value)

    def _begin(self, index: int, progress: Progress, now: float) -> None:
        """The first token of a choice: what its prompt was worth is known."""
        metrics = self._metrics
        progress.first = progress.last = now
        progress.num_tokens = 1
        metrics.time_to_first_token.observe(now - self._start)
        num_prompt_tokens = len(self._request.choices[index].prompt_token_ids)
        # Further answers to a prompt share the KV of the first.
        num_cached = num_prompt_tokens
        if index % self._num_answers == 0:
            num_known, self._num_cached_tokens = (
                self._num_cached_tokens,
                self._inner.usage().num_cached_tokens,
            )
            num_cached = self._num_cached_tokens - num_known
        progress.num_cached_tokens = num_cached
        metrics.prompts.on_prompt(num_prompt_tokens, num_cached)

    def _end(self, progress: Progress, reason: str) -> None:
        if not progress.end:
            progress.end = reason
            self._metrics.on_end(reason)
