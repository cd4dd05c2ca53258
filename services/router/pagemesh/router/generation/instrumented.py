"""Measures generations from the client's side, in vLLM's metric names."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Final

from pagemesh.router.generation.generation import Generation
from pagemesh.router.generation.request import ChoiceDelta, GenerationRequest, Idle, Usage
from pagemesh.router.route_header import Explanation
from pagemesh.telemetry import metrics as names
from pagemesh.telemetry.metrics import Metrics

_WORST_FIRST: Final = ("error", "abort", "", "length", "stop")


class GenerationMetrics:
    """The metrics of one model's generations, with their labels filled in."""

    def __init__(self, metrics: Metrics, model_name: str) -> None:
        self.time_to_first_token = metrics.histogram(names.TIME_TO_FIRST_TOKEN).labels(model_name)
        self.inter_token_latency = metrics.histogram(names.INTER_TOKEN_LATENCY).labels(model_name)
        self.time_per_token = metrics.histogram(names.TIME_PER_OUTPUT_TOKEN).labels(model_name)
        self.request_latency = metrics.histogram(names.E2E_REQUEST_LATENCY).labels(model_name)
        self.prompt_tokens = metrics.counter(names.PROMPT_TOKENS).labels(model_name)
        self.generation_tokens = metrics.counter(names.GENERATION_TOKENS).labels(model_name)
        success = metrics.counter(names.REQUEST_SUCCESS)
        self.ended = {
            reason: success.labels(model_name, reason)
            for reason in ("stop", "length", "abort", "error")
        }


class _Progress:
    """When the tokens of one choice came."""

    def __init__(self) -> None:
        self.first = 0.0
        self.last = 0.0
        self.num_tokens = 0
        self.end = ""
        """Why it is over; empty while it runs."""


class InstrumentedGeneration:
    """A generation that is measured while it is read; each choice counts as a request, as in vLLM."""

    def __init__(
        self, inner: Generation, request: GenerationRequest, metrics: GenerationMetrics
    ) -> None:
        self._inner = inner
        self._request = request
        self._metrics = metrics
        self._start = time.perf_counter()
        self._progress = [_Progress() for _ in request.choices]
        self._unfinished = "abort"

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
        """As the inner generation's."""
        self._inner.close()
        for progress in self._progress:
            self._end(progress, self._unfinished)

    def _observe(self, delta: ChoiceDelta) -> None:
        now = time.perf_counter()
        progress, metrics = self._progress[delta.index], self._metrics
        num_tokens = len(delta.token_ids)
        if num_tokens:
            metrics.generation_tokens.inc(num_tokens)
            if not progress.num_tokens:
                progress.first = progress.last = now
                metrics.time_to_first_token.observe(now - self._start)
                prompt = self._request.choices[delta.index].prompt_token_ids
                metrics.prompt_tokens.inc(len(prompt))
                num_tokens -= 1
                progress.num_tokens = 1
            for _ in range(num_tokens):
                # Tokens that came together took equal shares of the time.
                metrics.inter_token_latency.observe((now - progress.last) / num_tokens)
            progress.num_tokens += num_tokens
            progress.last = now
        if delta.stop_reason is not None:
            metrics.request_latency.observe(now - self._start)
            if progress.num_tokens > 1:
                duration = progress.last - progress.first
                metrics.time_per_token.observe(duration / (progress.num_tokens - 1))
            self._end(progress, delta.stop_reason.value)

    def _end(self, progress: _Progress, reason: str) -> None:
        if not progress.end:
            progress.end = reason
            self._metrics.ended[reason].inc()
