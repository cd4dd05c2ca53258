"""What is counted of a client's request: each answer as a request, prompts and their caches once."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from pagemesh.router.dispatch.turn import Turn
from pagemesh.router.generation.generation_metrics import GenerationMetrics
from pagemesh.router.generation.instrumented import InstrumentedGeneration
from pagemesh.router.generation.request import ChoiceDelta, StopReason, Usage
from pagemesh.telemetry.metrics import Metrics

PROMPT = tuple(range(20))


class Script:
    """A generation that says what it was given; the first prompt has 16 cached tokens, others none."""

    def __init__(self, deltas: Sequence[ChoiceDelta]) -> None:
        self._deltas = deltas

    async def deltas(self) -> AsyncGenerator[ChoiceDelta, None]:
        for delta in self._deltas:
            yield delta

    def usage(self) -> Usage:
        return Usage(20, 1, num_cached_tokens=16)

    def close(self) -> None:
        pass


def delta(index: int, num_tokens: int, stop: StopReason | None = None) -> ChoiceDelta:
    return ChoiceDelta(index, "", tuple(range(num_tokens)), stop)


def watched(num_answers: int, *deltas: ChoiceDelta, queued: float = 0.0) -> Metrics:
    """The metrics of one prompt with so many answers."""
    metrics = Metrics()
    choice = SimpleNamespace(prompt_token_ids=PROMPT, sampling=SimpleNamespace(max_tokens=30))
    request: Any = SimpleNamespace(choices=(choice,) * num_answers, num_prompts=1)
    turn = Turn("", 1.0, 0, num_seats=1, num_tokens=1, deadline=1e9)
    if queued:
        turn.number, turn.has_come, turn.joined_at, turn.came_at = 1, True, 100.0, 100.0 + queued
    inner: Any = Script(deltas)
    generation = InstrumentedGeneration(inner, request, turn, GenerationMetrics(metrics, "demo"))

    async def read() -> None:
        found = [each async for each in generation.deltas()]
        assert found == list(deltas)

    asyncio.run(read())
    for _ in range(2):
        # Whoever watches it closes it, too.
        generation.close()
    return metrics


def value(metrics: Metrics, name: str, **labels: str) -> float | None:
    return metrics.registry.get_sample_value(
        f"vllm:{name}", {"model_name": "demo", "engine": "0", **labels}
    )


def test_answers_to_one_prompt_share_what_the_first_had_to_compute() -> None:
    metrics = watched(
        2, delta(0, 1), delta(1, 1), delta(0, 4, StopReason.STOP), delta(1, 2, StopReason.LENGTH)
    )
    assert value(metrics, "prompt_tokens_total") == 40
    assert value(metrics, "prompt_tokens_cached_total") == 36
    assert value(metrics, "prompt_tokens_by_source_total", source="local_compute") == 4
    assert value(metrics, "prompt_tokens_by_source_total", source="local_cache_hit") == 36
    assert value(metrics, "request_prefill_kv_computed_tokens_sum") == 4
    assert value(metrics, "generation_tokens_total") == 8
    assert value(metrics, "request_generation_tokens_sum") == 8
    assert value(metrics, "request_generation_tokens_count") == 2
    assert value(metrics, "request_max_num_generation_tokens_sum") == 5
    assert value(metrics, "request_params_n_sum") == 2
    assert value(metrics, "request_params_n_count") == 1
    assert value(metrics, "request_params_max_tokens_sum") == 30
    assert value(metrics, "request_params_max_tokens_count") == 1
    assert value(metrics, "request_prompt_tokens_sum") == 40
    assert value(metrics, "request_success_total", finished_reason="length") == 1


def test_what_was_given_up_says_nothing_about_how_long_answers_are() -> None:
    metrics = watched(2, delta(0, 1), delta(1, 1), delta(0, 4, StopReason.STOP))
    assert value(metrics, "request_success_total", finished_reason="stop") == 1
    assert value(metrics, "request_success_total", finished_reason="abort") == 1
    assert value(metrics, "request_generation_tokens_count") == 1
    assert value(metrics, "request_params_n_count") == 0
    assert value(metrics, "request_max_num_generation_tokens_count") == 0


def test_the_time_on_workers_is_without_the_routers_queue() -> None:
    metrics = watched(1, delta(0, 2, StopReason.STOP), queued=5.0)
    latency = value(metrics, "e2e_request_latency_seconds_sum")
    inference = value(metrics, "request_inference_time_seconds_sum")
    assert latency is not None and inference == pytest.approx(latency - 5)
