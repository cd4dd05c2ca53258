"""What is shown by vLLM's names of then is what the metrics of today say."""

from __future__ import annotations

import re

import pytest

from pagemesh.config import MetricsConfig
from pagemesh.telemetry.metrics import Metrics, engine, requests
from pagemesh.telemetry.metrics import compatibility as older
from pagemesh.telemetry.metrics.catalog import specs_of
from pagemesh.telemetry.metrics.registry import ModelMetrics
from pagemesh.telemetry.older_names import make_metrics, show_older_names
from tests.fakes.clock import FakeClock

LABELS = {"model_name": "demo", "engine": "0"}


class Shown:
    def __init__(self) -> None:
        self.clock = FakeClock()
        self.metrics = Metrics()
        self.of_model = ModelMetrics(self.metrics, "demo")
        show_older_names(self.metrics, self.clock)

    def value(self, name: str, **labels: str) -> float | None:
        return self.metrics.registry.get_sample_value(name, {**LABELS, **labels})


@pytest.fixture
def shown() -> Shown:
    return Shown()


def test_what_has_another_name_today_has_the_same_value(shown: Shown) -> None:
    shown.of_model.gauge(engine.KV_CACHE_USAGE).set(0.25)
    shown.of_model.gauge(engine.SWAP_SPACE_USAGE).set(0.75)
    for seconds in (0.02, 0.3):
        shown.of_model.histogram(requests.INTER_TOKEN_LATENCY).observe(seconds)
    assert shown.value("vllm:gpu_cache_usage_perc") == 0.25
    assert shown.value("vllm:cpu_cache_usage_perc") == 0.75
    name = "vllm:time_per_output_token_seconds"
    assert shown.value(f"{name}_count") == 2
    assert shown.value(f"{name}_sum") == pytest.approx(0.32)
    assert shown.value(f"{name}_bucket", le="0.025") == 1


@pytest.mark.parametrize("name", ["gpu", "cpu"])
def test_the_hit_rate_is_that_of_all_prompts_so_far(shown: Shown, name: str) -> None:
    queries = shown.of_model.counter(requests.PREFIX_CACHE_QUERIES)
    hits = shown.of_model.counter(requests.PREFIX_CACHE_HITS)
    assert shown.value(f"vllm:{name}_prefix_cache_hit_rate") == 0
    queries.inc(400)
    hits.inc(100)
    assert shown.value(f"vllm:{name}_prefix_cache_hit_rate") == 0.25


def test_throughput_is_the_growth_of_the_last_seconds_whoever_else_reads(shown: Shown) -> None:
    tokens = shown.of_model.counter(requests.GENERATION_TOKENS)
    name = "vllm:avg_generation_throughput_toks_per_s"
    assert shown.value(name) == 0
    for second in range(1, 21):
        tokens.inc(10 if second <= 10 else 30)
        shown.clock.advance(1.0)
        for _ in range(3):
            now = shown.value(name)
        if second in (1, 10):
            assert now == 10
    assert now == 30


def test_throughput_between_rare_readings_is_the_mean_since_the_last(shown: Shown) -> None:
    tokens = shown.of_model.counter(requests.PROMPT_TOKENS)
    name = "vllm:avg_prompt_throughput_toks_per_s"
    tokens.inc(600)
    shown.clock.advance(60)
    assert shown.value(name) == 10
    tokens.inc(1200)
    shown.clock.advance(60)
    assert shown.value(name) == 20


def test_one_setting_shows_every_declared_older_name_or_none() -> None:
    declared = {spec.name for spec in specs_of(older)}
    assert len(declared) == 7
    for on, expected in ((True, declared), (False, set())):
        page = make_metrics(MetricsConfig(older_metric_names=on)).page().decode()
        assert set(re.findall(r"# TYPE (\S+)", page)) & declared == expected
