"""Metrics of the requests of one engine, from submission to their ends, in vLLM's names."""

from __future__ import annotations

from typing import Final

from pagemesh.engine.interface import EngineRequest, FinishReason, RequestOutput
from pagemesh.telemetry.metrics import requests as declared
from pagemesh.telemetry.metrics.of_model import ModelMetrics

_FINISHED_REASON: Final = {
    FinishReason.STOP: "stop",
    FinishReason.LENGTH: "length",
    FinishReason.CANCELLED: "abort",
    FinishReason.ERROR: "error",
}
"""vLLM's values of the label finished_reason."""


class Progress:
    """Times of one request, in seconds of the clock, and its tokens."""

    __slots__ = (
        "awaits_kv",
        "first_token_at",
        "last_token_at",
        "max_tokens",
        "num_computed_tokens",
        "num_prompt_tokens",
        "num_tokens",
        "submitted_at",
    )

    def __init__(self, request: EngineRequest, now: float) -> None:
        self.num_prompt_tokens = len(request.prompt_token_ids)
        self.max_tokens = request.sampling.max_tokens
        self.awaits_kv = request.await_kv
        self.submitted_at = now
        self.first_token_at: float | None = None
        self.last_token_at = 0.0
        self.num_tokens = 0
        self.num_computed_tokens = 0


class EngineRequestMetrics:
    """Told of what becomes of each request. Belongs to one thread."""

    def __init__(self, of_model: ModelMetrics) -> None:
        self._ttft = of_model.histogram(declared.TIME_TO_FIRST_TOKEN)
        self._itl = of_model.histogram(declared.INTER_TOKEN_LATENCY)
        self._tpot = of_model.histogram(declared.TIME_PER_OUTPUT_TOKEN)
        self._e2e = of_model.histogram(declared.E2E_REQUEST_LATENCY)
        self._prefill_time = of_model.histogram(declared.REQUEST_PREFILL_TIME)
        self._decode_time = of_model.histogram(declared.REQUEST_DECODE_TIME)
        self._inference_time = of_model.histogram(declared.REQUEST_INFERENCE_TIME)
        self._num_prompt_tokens = of_model.histogram(declared.REQUEST_PROMPT_TOKENS)
        self._num_tokens = of_model.histogram(declared.REQUEST_GENERATION_TOKENS)
        self._num_computed_tokens = of_model.histogram(declared.PREFILL_KV_COMPUTED)
        self._max_tokens = of_model.histogram(declared.REQUEST_PARAMS_MAX_TOKENS)
        self._prompt_tokens = of_model.counter(declared.PROMPT_TOKENS)
        self._tokens = of_model.counter(declared.GENERATION_TOKENS)
        self._cached = of_model.counter(declared.PROMPT_TOKENS_CACHED)
        sources = of_model.counters(declared.PROMPT_TOKENS_BY_SOURCE)
        self._computed = sources["local_compute",]
        self._found = sources["local_cache_hit",]
        self._received = sources["external_kv_transfer",]
        self._queries = of_model.counter(declared.PREFIX_CACHE_QUERIES)
        self._hits = of_model.counter(declared.PREFIX_CACHE_HITS)
        self._external_queries = of_model.counter(declared.EXTERNAL_CACHE_QUERIES)
        self._external_hits = of_model.counter(declared.EXTERNAL_CACHE_HITS)
        ended = of_model.counters(declared.REQUEST_SUCCESS)
        self._ended = {reason: ended[label,] for reason, label in _FINISHED_REASON.items()}

    def on_prompt(self, progress: Progress, output: RequestOutput) -> int:
        """With the first token, or the embedding; gives the tokens of the prompt."""
        num_tokens, num_cached = progress.num_prompt_tokens, output.num_cached_tokens
        # Of resumed requests, KV of tokens behind the prompt is cached and received as well.
        num_cached = min(num_cached, num_tokens)
        num_received = min(output.num_received_tokens, num_tokens - num_cached)
        progress.num_computed_tokens = num_tokens - num_cached - num_received
        self._queries.inc(num_tokens)
        self._hits.inc(num_cached)
        self._cached.inc(num_cached + num_received)
        self._computed.inc(progress.num_computed_tokens)
        self._found.inc(num_cached)
        if progress.awaits_kv:
            self._received.inc(num_received)
            self._external_queries.inc(num_tokens - num_cached)
            self._external_hits.inc(num_received)
        return num_tokens

    def on_tokens(self, progress: Progress, num_tokens: int, now: float) -> None:
        """New tokens of a request."""
        if progress.first_token_at is None:
            progress.first_token_at = now
            self._ttft.observe(now - progress.submitted_at)
        else:
            self._itl.observe((now - progress.last_token_at) / num_tokens)
        progress.last_token_at = now
        progress.num_tokens += num_tokens

    def on_step(self, num_prompt_tokens: int, num_tokens: int) -> None:
        """What a step was told of, once for all of its requests: counting takes a lock each time."""
        self._tokens.inc(num_tokens)
        if num_prompt_tokens:
            self._prompt_tokens.inc(num_prompt_tokens)

    def on_end(self, progress: Progress, reason: FinishReason, now: float) -> None:
        """A request is over."""
        self._ended[reason].inc()
        if reason not in (FinishReason.STOP, FinishReason.LENGTH):
            return
        seconds = now - progress.submitted_at
        self._e2e.observe(seconds)
        self._inference_time.observe(seconds)
        self._num_prompt_tokens.observe(progress.num_prompt_tokens)
        self._num_computed_tokens.observe(progress.num_computed_tokens)
        first = progress.first_token_at
        if first is None:
            return
        self._max_tokens.observe(progress.max_tokens)
        self._num_tokens.observe(progress.num_tokens)
        self._prefill_time.observe(first - progress.submitted_at)
        decoding = progress.last_token_at - first
        self._decode_time.observe(decoding)
        if progress.num_tokens > 1:
            self._tpot.observe(decoding / (progress.num_tokens - 1))
