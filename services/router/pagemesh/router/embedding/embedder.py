"""Embeds prompts: the entry to the embedding path for every service."""

from __future__ import annotations

import time
from collections.abc import Sequence

from pagemesh.errors import ContextLengthError, PagemeshError
from pagemesh.router.call import Call
from pagemesh.router.dispatch.dispatch import Dispatch
from pagemesh.router.embedding.job import EmbeddingJob
from pagemesh.router.embedding.vectors import Embeddings, EmbedOptions, Input
from pagemesh.router.in_progress import InProgress
from pagemesh.router.migration import Migrations
from pagemesh.router.placed_request import Order
from pagemesh.router.placer import Placer
from pagemesh.router.prompt_metrics import PromptMetrics
from pagemesh.router.served_model import ServedModel
from pagemesh.router.tenants.caller import current_caller
from pagemesh.router.workers import Workers
from pagemesh.telemetry.metrics import Metrics
from pagemesh.telemetry.metrics.registry import ModelMetrics
from pagemesh.telemetry.metrics.requests import (
    E2E_REQUEST_LATENCY,
    REQUEST_PROMPT_TOKENS,
    REQUEST_SUCCESS,
)


class Embedder:
    """A `PromptEmbedder` for one model; counts each prompt as a request, in vLLM's metric names."""

    def __init__(
        self,
        model: ServedModel,
        workers: Workers,
        planner: Placer,
        metrics: Metrics,
        in_progress: InProgress,
        migrations: Migrations,
        dispatch: Dispatch,
    ) -> None:
        self._model = model
        self._workers = workers
        self._planner = planner
        self._in_progress = in_progress
        self._migrations = migrations
        self._dispatch = dispatch
        of_model = ModelMetrics(metrics, model.name)
        self._latency = of_model.histogram(E2E_REQUEST_LATENCY)
        self._lengths = of_model.histogram(REQUEST_PROMPT_TOKENS)
        self._prompts = PromptMetrics(of_model)
        self._ended = of_model.counters(REQUEST_SUCCESS)

    async def embed(
        self,
        inputs: Sequence[Input],
        field: str,
        call: Call,
        options: EmbedOptions,
    ) -> Embeddings:
        prompts = await self._encode(inputs, field)
        lengths = list(map(len, prompts))
        num_tokens = sum(lengths)
        started_at = time.perf_counter()
        reason = "abort"
        turns = self._dispatch.turn(call, options.priority, lengths, [0] * len(prompts))
        with current_caller().allowance.tokens(num_tokens) as tally, turns as turn:
            order = Order(call, turn.worker_priority, len(prompts), options.cache_salt)
            job = EmbeddingJob(
                prompts, order, self._planner, self._migrations, turn, options.normalize
            )
            # A client that goes away had its prompts computed, or nearly.
            tally.num_used = num_tokens
            with self._in_progress.hold(job):
                try:
                    embeddings = await job.run()
                    reason = "stop"
                    turn.num_used_tokens = num_tokens - embeddings.num_cached_tokens
                except PagemeshError:
                    reason = "error"
                    tally.num_used = 0
                    raise
                finally:
                    self._ended[reason,].inc(len(prompts))
        self._prompts.on_prompt(embeddings.num_prompt_tokens, embeddings.num_cached_tokens)
        for length in lengths:
            self._latency.observe(time.perf_counter() - started_at)
            self._lengths.observe(length)
        return embeddings

    async def _encode(self, inputs: Sequence[Input], field: str) -> list[list[int]]:
        max_model_len = self._workers.require_max_model_len()
        prompts = []
        for each in inputs:
            if isinstance(each, str):
                prompt = await self._model.encode_prompt(each, field, max_model_len)
            else:
                prompt = self._model.check_token_ids(each, field)
            if len(prompt) > max_model_len:
                raise ContextLengthError.beyond(
                    max_model_len, f"{field} has {len(prompt)} tokens", field
                )
            prompts.append(prompt)
        return prompts
