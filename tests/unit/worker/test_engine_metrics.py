"""Metrics drawn from submissions and steps, with literal times."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from structlog.testing import capture_logs

from pagemesh.cache.swap_space import SwapTotals
from pagemesh.core.engine import StepOutput
from pagemesh.core.load import CoreTotals, EngineLoad, GrammarTotals, PrefillRate
from pagemesh.core.request import EngineRequest, FinishReason, RequestOutput
from pagemesh.sampling.params import SamplingParams
from pagemesh.telemetry.metrics import Metrics
from pagemesh.worker.engine_metrics import EngineMetrics
from tests.fakes.clock import FakeClock
from tests.fakes.engine import FakeEngine
from tests.support.metrics import with_engine


class Watched:
    def __init__(self) -> None:
        self.engine = FakeEngine()
        self.clock = FakeClock()
        self.metrics = Metrics()
        self.observer = EngineMetrics(self.metrics, "demo", self.engine, self.clock)

    def submit(
        self,
        request_id: str,
        num_prompt_tokens: int,
        *,
        await_kv: bool = False,
        max_tokens: int = 16,
    ) -> None:
        prompt, sampling = tuple(range(num_prompt_tokens)), SamplingParams(max_tokens=max_tokens)
        self.observer.on_submit(EngineRequest(request_id, prompt, sampling, await_kv=await_kv))

    def step(self, seconds: float, *outputs: RequestOutput) -> None:
        self.clock.advance(seconds)
        self.observer.on_step(StepOutput(outputs=outputs))

    def sample(self, name: str, **labels: str) -> float | None:
        return self.metrics.registry.get_sample_value(
            name, with_engine(name, {"model_name": "demo", **labels})
        )


@pytest.fixture
def watched() -> Iterator[Watched]:
    watched = Watched()
    yield watched
    watched.engine.stop()


def test_latencies_are_those_of_the_clock(watched: Watched) -> None:
    watched.submit("a", 20)
    watched.step(0.5, RequestOutput("a", (7,), num_cached_tokens=16))
    watched.step(0.25, RequestOutput("a", (8,)))
    watched.step(0.75, RequestOutput("a", (9,), FinishReason.STOP))
    assert watched.sample("vllm:time_to_first_token_seconds_sum") == 0.5
    assert watched.sample("vllm:time_to_first_token_seconds_count") == 1
    assert watched.sample("vllm:inter_token_latency_seconds_sum") == 1.0
    assert watched.sample("vllm:inter_token_latency_seconds_count") == 2
    assert watched.sample("vllm:request_time_per_output_token_seconds_sum") == 0.5
    assert watched.sample("vllm:e2e_request_latency_seconds_sum") == 1.5


def test_tokens_are_counted(watched: Watched) -> None:
    watched.submit("a", 20)
    watched.step(0.1, RequestOutput("a", (7,), num_cached_tokens=16))
    watched.step(0.1, RequestOutput("a", (8, 9)))
    assert watched.sample("vllm:prompt_tokens_total") == 20
    assert watched.sample("vllm:generation_tokens_total") == 3
    assert watched.sample("vllm:prefix_cache_queries_total") == 20
    assert watched.sample("vllm:prefix_cache_hits_total") == 16


def test_the_parts_of_a_requests_time(watched: Watched) -> None:
    watched.submit("a", 20, max_tokens=30)
    watched.step(0.5, RequestOutput("a", (7,), num_cached_tokens=16))
    watched.step(0.25, RequestOutput("a", (8, 9)))
    watched.step(0.25, RequestOutput("a", (), FinishReason.LENGTH))
    assert watched.sample("vllm:request_prefill_time_seconds_sum") == 0.5
    assert watched.sample("vllm:request_decode_time_seconds_sum") == 0.25
    assert watched.sample("vllm:request_inference_time_seconds_sum") == 1.0
    assert watched.sample("vllm:request_prompt_tokens_sum") == 20
    assert watched.sample("vllm:request_generation_tokens_sum") == 3
    assert watched.sample("vllm:request_prefill_kv_computed_tokens_sum") == 4
    assert watched.sample("vllm:request_params_max_tokens_sum") == 30


def test_prompt_tokens_are_parted_by_where_their_kv_came_from(watched: Watched) -> None:
    watched.submit("a", 100, await_kv=True)
    watched.submit("b", 20)
    watched.step(
        0.1,
        RequestOutput("a", (1,), num_cached_tokens=16, num_received_tokens=80),
        RequestOutput("b", (1,)),
    )
    for source, number in {
        "local_compute": 24,
        "local_cache_hit": 16,
        "external_kv_transfer": 80,
    }.items():
        assert watched.sample("vllm:prompt_tokens_by_source_total", source=source) == number
    assert watched.sample("vllm:prompt_tokens_total") == 120
    assert watched.sample("vllm:prompt_tokens_cached_total") == 96
    assert watched.sample("vllm:external_prefix_cache_queries_total") == 84
    assert watched.sample("vllm:external_prefix_cache_hits_total") == 80


def test_a_resumed_request_has_no_more_of_its_prompt_than_there_is(watched: Watched) -> None:
    watched.submit("a", 20, await_kv=True)
    watched.step(0.1, RequestOutput("a", (1,), num_cached_tokens=16, num_received_tokens=32))
    assert watched.sample("vllm:prompt_tokens_cached_total") == 20
    assert watched.sample("vllm:prompt_tokens_by_source_total", source="local_compute") == 0


def test_a_step_counts_the_prompts_that_it_finished_and_the_tokens_that_it_made(
    watched: Watched,
) -> None:
    watched.submit("a", 20)
    watched.submit("b", 30)
    watched.step(0.1, RequestOutput("a", (7,)))
    watched.step(0.1, RequestOutput("a", (8,)), RequestOutput("b", (7,)))
    # Nothing came of this one: a prompt is computed in several.
    watched.step(0.1)
    assert watched.sample("vllm:iteration_tokens_total_sum") == 20 + 1 + 30 + 2
    assert watched.sample("vllm:iteration_tokens_total_count") == 2


def test_the_cache_is_described(watched: Watched) -> None:
    layout = watched.engine.info.layout
    assert (
        watched.sample(
            "vllm:cache_config_info",
            block_size=str(layout.block_size),
            cache_dtype=layout.dtype,
            num_gpu_blocks="64",
            kv_cache_size_tokens="1024",
            kv_cache_max_concurrency=f"{1024 / watched.engine.info.max_model_len:.2f}",
        )
        == 1
    )


def test_ends_are_counted_by_vllms_reasons(watched: Watched) -> None:
    for number, reason in enumerate(FinishReason):
        watched.submit(str(number), 1)
        watched.step(0.1, RequestOutput(str(number), finish_reason=reason))
    for label in ("stop", "length", "abort", "error"):
        assert watched.sample("vllm:request_success_total", finished_reason=label) == 1
    # What was given up says nothing about how long requests take.
    assert watched.sample("vllm:e2e_request_latency_seconds_count") == 2


def test_preemptions_are_counted_by_what_becomes_of_the_kv(watched: Watched) -> None:
    for num_preemptions, num_swapped in ((2, 0), (2, 0), (5, 2)):
        swap = SwapTotals(num_preemptions=num_swapped)
        load = EngineLoad(num_preemptions=num_preemptions, swap=swap)
        watched.observer.on_step(StepOutput(load=load))
    assert watched.sample("vllm:num_preemptions_total") == 5
    assert watched.sample("pagemesh:preemptions_total", kind="swap") == 2
    assert watched.sample("pagemesh:preemptions_total", kind="recompute") == 3


def test_preemptions_are_warned_of_once_in_half_a_minute_with_their_number(
    watched: Watched,
) -> None:
    with capture_logs() as logs:
        for seconds, num_preemptions in ((0, 1), (10, 3), (19.5, 3), (0.5, 4), (30, 4), (1, 9)):
            watched.clock.advance(seconds)
            load = EngineLoad(num_preemptions=num_preemptions)
            watched.observer.on_step(StepOutput(load=load))
    said = [entry for entry in logs if entry["event"] == "requests were preempted"]
    assert [entry["count"] for entry in said] == [1, 3, 5]
    assert {entry["log_level"] for entry in said} == {"warning"}


def test_waits_for_grammars_are_counted_once(watched: Watched) -> None:
    for totals in (GrammarTotals(2, 1, 0.5), GrammarTotals(2, 1, 0.5), GrammarTotals(5, 3, 0.75)):
        watched.observer.on_step(StepOutput(load=EngineLoad(grammars=totals)))
    assert watched.sample("pagemesh:grammar_requests_total") == 5
    assert watched.sample("pagemesh:grammar_hits_total") == 3
    assert watched.sample("pagemesh:grammar_wait_seconds_total") == 0.75


def test_cores_of_others_are_counted_once(watched: Watched) -> None:
    for totals in (CoreTotals(0.5, 0.125), CoreTotals(0.5, 0.125), CoreTotals(2.0, 0.25)):
        watched.observer.on_step(StepOutput(load=EngineLoad(cores=totals)))
    assert watched.sample("pagemesh:borrowed_core_seconds_total") == 2.0
    assert watched.sample("pagemesh:core_wait_seconds_total") == 0.25


def test_unknown_requests_are_ignored(watched: Watched) -> None:
    watched.step(0.1, RequestOutput("stranger", (1,), FinishReason.STOP))
    assert watched.sample("vllm:generation_tokens_total") == 0


def test_gauges_are_the_engines_load_at_the_moment(watched: Watched) -> None:
    assert watched.sample("vllm:kv_cache_usage_perc") == 0
    assert watched.sample("pagemesh:kv_blocks_free") == 64
    assert watched.sample("pagemesh:kv_blocks") == 64
    assert watched.sample("pagemesh:kv_waste") == 0
    assert watched.sample("vllm:num_requests_swapped") == 0
    watched.engine.scheduler.requests.submit(
        EngineRequest("a", tuple(range(20)), SamplingParams(), hold_blocks=True)
    )
    watched.engine.start(lambda step: None)
    # The first command after the start is answered when the load of what was there is known.
    watched.engine.pin("barrier", ()).result(5)
    watched.engine.pin("barrier-2", ()).result(5)
    assert watched.sample("pagemesh:kv_blocks_free") == 62
    assert watched.sample("vllm:kv_cache_usage_perc") == pytest.approx(2 / 64)
    assert watched.sample("pagemesh:kv_waste") == pytest.approx(12 / 32)


class BusyEngine(FakeEngine):
    """Says that it has a certain load."""

    def load(self) -> EngineLoad:
        return EngineLoad(
            num_running=3,
            num_waiting=5,
            num_queued=4,
            num_free_blocks=7,
            num_pending_prefill_tokens=11,
            num_swapped=2,
            prefill_rate=PrefillRate(0.25, 0.5, 0.125, 512, 100.0),
        )


def test_the_load_is_what_the_engine_says_when_it_is_asked() -> None:
    engine = BusyEngine()
    metrics = Metrics()
    EngineMetrics(metrics, "demo", engine, FakeClock())
    told = {
        name: metrics.registry.get_sample_value(name, with_engine(name, {"model_name": "demo"}))
        for name in (
            "vllm:num_requests_running",
            "vllm:num_requests_waiting",
            "vllm:num_requests_swapped",
            "pagemesh:kv_blocks_free",
            "pagemesh:pending_prefill_tokens",
            "pagemesh:prefill_seconds_per_token",
            "pagemesh:prefill_seconds_per_pair",
            "pagemesh:prefill_seconds_per_step",
        )
    }
    assert told == {
        "vllm:num_requests_running": 3,
        "vllm:num_requests_waiting": 5,
        "vllm:num_requests_swapped": 2,
        "pagemesh:kv_blocks_free": 7,
        "pagemesh:pending_prefill_tokens": 11,
        "pagemesh:prefill_seconds_per_token": 0.25,
        "pagemesh:prefill_seconds_per_pair": 0.5,
        "pagemesh:prefill_seconds_per_step": 0.125,
    }
    for reason, number in (("capacity", 4), ("deferred", 1)):
        labels = {"model_name": "demo", "engine": "0", "reason": reason}
        name = "vllm:num_requests_waiting_by_reason"
        assert metrics.registry.get_sample_value(name, labels) == number
    engine.stop()
