"""Metrics of an engine and of its requests, as a listener of its step outputs."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from functools import partial
from typing import Final

import structlog

from pagemesh.core.engine import Engine, EngineInfo, StepOutput
from pagemesh.core.load import CoreTotals, EngineLoad, GrammarTotals
from pagemesh.core.request import EngineRequest, FinishReason, RequestOutput
from pagemesh.telemetry.cache_size import CacheSize
from pagemesh.telemetry.metrics import Metrics
from pagemesh.telemetry.metrics import engine as declared
from pagemesh.telemetry.metrics import requests as request_metrics
from pagemesh.telemetry.metrics.labels import ENGINE
from pagemesh.telemetry.metrics.registry import ModelMetrics

_log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)

PREEMPTION_PERIOD_S: Final = 30.0
"""Preemptions are warned of once in so many seconds, with their number since the last time."""


class EngineMetrics:
    """Watches one engine: told of every request that is submitted and of every step, in order."""

    def __init__(
        self,
        metrics: Metrics,
        model_name: str,
        engine: Engine,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._clock = clock
        self._progress: dict[str, Progress] = {}
        of_model = ModelMetrics(metrics, model_name)
        info = engine.info
        of_model.gauge(declared.KV_BLOCKS).set(info.num_blocks)
        of_model.gauge(declared.IDENTICAL_TOKENS).set(not info.identity_trouble)
        cache = CacheSize.of(info.layout, info.num_blocks, info.max_model_len)
        metrics.gauge(declared.CACHE_CONFIG_INFO).labels(model_name, ENGINE, *cache.labels).set(1)
        _show_load(of_model, engine)
        self._requests = EngineRequestMetrics(of_model)
        self._iteration_tokens = of_model.histogram(declared.ITERATION_TOKENS)
        self._preemptions = of_model.counter(declared.NUM_PREEMPTIONS)
        by_kind = of_model.counters(declared.PREEMPTIONS_BY_KIND)
        self._swapped, self._recomputed = by_kind["swap",], by_kind["recompute",]
        self._num_preemptions = self._num_swapped = 0
        self._num_unsaid, self._say_at = 0, -math.inf
        self._grammar_requests = of_model.counter(declared.GRAMMAR_REQUESTS)
        self._grammar_hits = of_model.counter(declared.GRAMMAR_HITS)
        self._grammar_wait = of_model.counter(declared.GRAMMAR_WAIT_SECONDS)
        self._grammars = GrammarTotals()
        self._borrowed = of_model.counter(declared.BORROWED_CORE_SECONDS)
        self._core_wait = of_model.counter(declared.CORE_WAIT_SECONDS)
        self._cores = CoreTotals()

    def on_submit(self, request: EngineRequest) -> None:
        """A request enters the engine."""
        self._progress[request.request_id] = Progress(request, self._clock())

    def on_step(self, step: StepOutput) -> None:
        """A step of the engine made something known."""
        now = self._clock()
        if step.load.num_preemptions != self._num_preemptions:
            self._on_preemptions(step.load)
        self._on_grammars(step.load.grammars)
        self._on_cores(step.load.cores)
        num_prompt_tokens = num_tokens = 0
        for output in step.outputs:
            progress = self._progress.get(output.request_id)
            if progress is None:
                continue
            if output.embedding is not None:
                num_prompt_tokens += self._requests.on_prompt(progress, output)
            if new := len(output.token_ids):
                if progress.first_token_at is None:
                    num_prompt_tokens += self._requests.on_prompt(progress, output)
                self._requests.on_tokens(progress, new, now)
                num_tokens += new
            if output.finish_reason is not None:
                del self._progress[output.request_id]
                self._requests.on_end(progress, output.finish_reason, now)
        if num_tokens or num_prompt_tokens:
            self._requests.on_step(num_prompt_tokens, num_tokens)
            self._iteration_tokens.observe(num_prompt_tokens + num_tokens)

    def _on_preemptions(self, load: EngineLoad) -> None:
        num_new = load.num_preemptions - self._num_preemptions
        num_swapped = load.swap.num_preemptions - self._num_swapped
        self._num_preemptions, self._num_swapped = load.num_preemptions, load.swap.num_preemptions
        self._preemptions.inc(num_new)
        self._swapped.inc(num_swapped)
        self._recomputed.inc(num_new - num_swapped)
        self._num_unsaid += num_new
        now = self._clock()
        if now >= self._say_at:
            _log.warning(
                "requests were preempted",
                count=self._num_unsaid,
                num_free_blocks=load.num_free_blocks,
                num_running=load.num_running,
                hint="give the worker more KV memory, lower --max-num-seqs, or add a worker",
            )
            self._num_unsaid, self._say_at = 0, now + PREEMPTION_PERIOD_S

    def _on_grammars(self, totals: GrammarTotals) -> None:
        known, self._grammars = self._grammars, totals
        if totals != known:
            self._grammar_requests.inc(totals.num_requests - known.num_requests)
            self._grammar_hits.inc(totals.num_kept - known.num_kept)
            self._grammar_wait.inc(totals.wait_seconds - known.wait_seconds)

    def _on_cores(self, totals: CoreTotals) -> None:
        known, self._cores = self._cores, totals
        if totals != known:
            self._borrowed.inc(totals.borrowed_seconds - known.borrowed_seconds)
            self._core_wait.inc(totals.wait_seconds - known.wait_seconds)


def _show_load(of_model: ModelMetrics, engine: Engine) -> None:
    info = engine.info
    # Asked when they are scraped: blocks also come back between two steps, and idle engines
    # make none.
    for spec, value in (
        (declared.NUM_REQUESTS_RUNNING, lambda load: load.num_running),
        (declared.NUM_REQUESTS_WAITING, lambda load: load.num_waiting),
        (declared.KV_CACHE_USAGE, lambda load: 1 - load.num_free_blocks / info.num_blocks),
        (declared.SWAP_SPACE_USAGE, lambda load: load.swap.usage),
        (declared.KV_BLOCKS_FREE, lambda load: load.num_free_blocks),
        (declared.PENDING_PREFILL_TOKENS, lambda load: load.num_pending_prefill_tokens),
        (declared.NUM_REQUESTS_SWAPPED, lambda load: load.num_swapped),
        (declared.KV_WASTE, partial(_waste, info)),
        (declared.PREFILL_SECONDS_PER_TOKEN, lambda load: load.prefill_rate.seconds_per_token),
        (declared.PREFILL_SECONDS_PER_PAIR, lambda load: load.prefill_rate.seconds_per_pair),
        (declared.PREFILL_SECONDS_PER_STEP, lambda load: load.prefill_rate.seconds_per_step),
    ):
        of_model.gauge(spec).set_function(_of_load(engine, value))
    by_reason = of_model.gauges(declared.NUM_WAITING_BY_REASON)
    for reason, value in (
        ("capacity", lambda load: load.num_queued),
        ("deferred", lambda load: load.num_waiting - load.num_queued),
    ):
        by_reason[reason,].set_function(_of_load(engine, value))


def _waste(info: EngineInfo, load: EngineLoad) -> float:
    num_slots = (info.num_blocks - load.num_free_blocks) * info.layout.block_size
    return load.num_unused_slots / num_slots if num_slots else 0.0


def _of_load(engine: Engine, value: Callable[[EngineLoad], float]) -> Callable[[], float]:
    return lambda: value(engine.load())


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
        self._ttft = of_model.histogram(request_metrics.TIME_TO_FIRST_TOKEN)
        self._itl = of_model.histogram(request_metrics.INTER_TOKEN_LATENCY)
        self._tpot = of_model.histogram(request_metrics.TIME_PER_OUTPUT_TOKEN)
        self._e2e = of_model.histogram(request_metrics.E2E_REQUEST_LATENCY)
        self._prefill_time = of_model.histogram(request_metrics.REQUEST_PREFILL_TIME)
        self._decode_time = of_model.histogram(request_metrics.REQUEST_DECODE_TIME)
        self._inference_time = of_model.histogram(request_metrics.REQUEST_INFERENCE_TIME)
        self._num_prompt_tokens = of_model.histogram(request_metrics.REQUEST_PROMPT_TOKENS)
        self._num_tokens = of_model.histogram(request_metrics.REQUEST_GENERATION_TOKENS)
        self._num_computed_tokens = of_model.histogram(request_metrics.PREFILL_KV_COMPUTED)
        self._max_tokens = of_model.histogram(request_metrics.REQUEST_PARAMS_MAX_TOKENS)
        self._prompt_tokens = of_model.counter(request_metrics.PROMPT_TOKENS)
        self._tokens = of_model.counter(request_metrics.GENERATION_TOKENS)
        self._cached = of_model.counter(request_metrics.PROMPT_TOKENS_CACHED)
        sources = of_model.counters(request_metrics.PROMPT_TOKENS_BY_SOURCE)
        self._computed = sources["local_compute",]
        self._found = sources["local_cache_hit",]
        self._received = sources["external_kv_transfer",]
        self._queries = of_model.counter(request_metrics.PREFIX_CACHE_QUERIES)
        self._hits = of_model.counter(request_metrics.PREFIX_CACHE_HITS)
        self._external_queries = of_model.counter(request_metrics.EXTERNAL_CACHE_QUERIES)
        self._external_hits = of_model.counter(request_metrics.EXTERNAL_CACHE_HITS)
        ended = of_model.counters(request_metrics.REQUEST_SUCCESS)
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
