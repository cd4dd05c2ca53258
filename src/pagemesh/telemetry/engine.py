"""Metrics of an engine, drawn from what goes in and what each step gives out."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Final

from pagemesh.engine.interface import (
    Engine,
    EngineInfo,
    EngineLoad,
    EngineRequest,
    FinishReason,
    GrammarTotals,
    RequestOutput,
    StepOutput,
)
from pagemesh.telemetry import metrics as declared
from pagemesh.telemetry.metrics import Metrics

_FINISHED_REASON: Final = {
    FinishReason.STOP: "stop",
    FinishReason.LENGTH: "length",
    FinishReason.CANCELLED: "abort",
    FinishReason.ERROR: "error",
}
"""vLLM's values of the label finished_reason."""


@dataclass(slots=True)
class _Progress:
    """Times of one request, in seconds of the clock."""

    num_prompt_tokens: int
    submitted_at: float
    first_token_at: float | None = None
    last_token_at: float = 0.0
    num_tokens: int = 0


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
        self._requests: dict[str, _Progress] = {}
        num_blocks = engine.info.num_blocks
        metrics.gauge(declared.KV_BLOCKS).labels(model_name).set(num_blocks)
        # Asked when they are scraped: blocks also come back between two steps, and idle engines
        # make none.
        for spec, value in (
            (declared.NUM_REQUESTS_RUNNING, lambda load: load.num_running),
            (declared.NUM_REQUESTS_WAITING, lambda load: load.num_waiting),
            (declared.KV_CACHE_USAGE, lambda load: 1 - load.num_free_blocks / num_blocks),
            (declared.KV_BLOCKS_FREE, lambda load: load.num_free_blocks),
            (declared.PENDING_PREFILL_TOKENS, lambda load: load.num_pending_prefill_tokens),
            (declared.NUM_REQUESTS_SWAPPED, lambda load: load.num_swapped),
            (declared.KV_WASTE, partial(_waste, engine.info)),
            (declared.PREFILL_SECONDS_PER_TOKEN, lambda load: load.prefill_rate.seconds_per_token),
            (declared.PREFILL_SECONDS_PER_PAIR, lambda load: load.prefill_rate.seconds_per_pair),
            (declared.PREFILL_SECONDS_PER_STEP, lambda load: load.prefill_rate.seconds_per_step),
        ):
            metrics.gauge(spec).labels(model_name).set_function(_of_load(engine, value))
        self._ttft = metrics.histogram(declared.TIME_TO_FIRST_TOKEN).labels(model_name)
        self._itl = metrics.histogram(declared.INTER_TOKEN_LATENCY).labels(model_name)
        self._tpot = metrics.histogram(declared.TIME_PER_OUTPUT_TOKEN).labels(model_name)
        self._e2e = metrics.histogram(declared.E2E_REQUEST_LATENCY).labels(model_name)
        self._prompt_tokens = metrics.counter(declared.PROMPT_TOKENS).labels(model_name)
        self._tokens = metrics.counter(declared.GENERATION_TOKENS).labels(model_name)
        self._queries = metrics.counter(declared.PREFIX_CACHE_QUERIES).labels(model_name)
        self._hits = metrics.counter(declared.PREFIX_CACHE_HITS).labels(model_name)
        self._preemptions = metrics.counter(declared.NUM_PREEMPTIONS).labels(model_name)
        self._num_preemptions = 0
        self._grammar_requests = metrics.counter(declared.GRAMMAR_REQUESTS).labels(model_name)
        self._grammar_hits = metrics.counter(declared.GRAMMAR_HITS).labels(model_name)
        self._grammar_wait = metrics.counter(declared.GRAMMAR_WAIT_SECONDS).labels(model_name)
        self._grammars = GrammarTotals()
        ended = metrics.counter(declared.REQUEST_SUCCESS)
        self._ended = {
            reason: ended.labels(model_name, label) for reason, label in _FINISHED_REASON.items()
        }

    def on_submit(self, request: EngineRequest) -> None:
        """A request enters the engine."""
        self._requests[request.request_id] = _Progress(len(request.prompt_token_ids), self._clock())

    def on_step(self, step: StepOutput) -> None:
        """A step of the engine made something known."""
        now = self._clock()
        self._preemptions.inc(step.load.num_preemptions - self._num_preemptions)
        self._num_preemptions = step.load.num_preemptions
        self._on_grammars(step.load.grammars)
        for output in step.outputs:
            progress = self._requests.get(output.request_id)
            if progress is None:
                continue
            if output.embedding is not None:
                self._on_prompt(progress, output)
            if output.token_ids:
                self._on_tokens(progress, output, now)
            if output.finish_reason is not None:
                del self._requests[output.request_id]
                self._on_end(progress, output.finish_reason, now)

    def _on_grammars(self, totals: GrammarTotals) -> None:
        known, self._grammars = self._grammars, totals
        if totals != known:
            self._grammar_requests.inc(totals.num_requests - known.num_requests)
            self._grammar_hits.inc(totals.num_kept - known.num_kept)
            self._grammar_wait.inc(totals.wait_seconds - known.wait_seconds)

    def _on_tokens(self, progress: _Progress, output: RequestOutput, now: float) -> None:
        num_tokens = len(output.token_ids)
        self._tokens.inc(num_tokens)
        if progress.first_token_at is None:
            progress.first_token_at = now
            self._ttft.observe(now - progress.submitted_at)
            self._on_prompt(progress, output)
        else:
            self._itl.observe((now - progress.last_token_at) / num_tokens)
        progress.last_token_at = now
        progress.num_tokens += num_tokens

    def _on_prompt(self, progress: _Progress, output: RequestOutput) -> None:
        self._prompt_tokens.inc(progress.num_prompt_tokens)
        self._queries.inc(progress.num_prompt_tokens)
        self._hits.inc(output.num_cached_tokens)

    def _on_end(self, progress: _Progress, reason: FinishReason, now: float) -> None:
        self._ended[reason].inc()
        if reason not in (FinishReason.STOP, FinishReason.LENGTH):
            return
        self._e2e.observe(now - progress.submitted_at)
        if progress.first_token_at is not None and progress.num_tokens > 1:
            decoding = progress.last_token_at - progress.first_token_at
            self._tpot.observe(decoding / (progress.num_tokens - 1))


def _waste(info: EngineInfo, load: EngineLoad) -> float:
    num_slots = (info.num_blocks - load.num_free_blocks) * info.layout.block_size
    return load.num_unused_slots / num_slots if num_slots else 0.0


def _of_load(engine: Engine, value: Callable[[EngineLoad], float]) -> Callable[[], float]:
    return lambda: value(engine.load())
