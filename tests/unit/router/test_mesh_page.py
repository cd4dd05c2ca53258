"""The page of the mesh: counters apart by router, gauges once, whichever router is asked."""

from __future__ import annotations

import pytest

from pagemesh.router.mesh_page import mesh_page
from pagemesh.telemetry.metrics import Metrics, admission, engine, requests
from pagemesh.telemetry.metrics.process import CERTIFICATE_EXPIRY
from pagemesh.telemetry.metrics.registry import ModelMetrics
from pagemesh.telemetry.older_names import show_older_names
from tests.fakes.clock import FakeClock
from tests.support.metrics import metric

FIRST, SECOND = "10.0.0.1:50051", "10.0.0.2:50051"
NUM_ON_WORKERS = 5


class Router:
    """What one router shows of two models: `number` differs from router to router, the workers do not."""

    def __init__(self, number: int) -> None:
        self.metrics, clock = Metrics(), FakeClock()
        show_older_names(self.metrics, clock)
        self.metrics.gauge(CERTIFICATE_EXPIRY).set(number)
        for model in ("demo", "other"):
            of_model = ModelMetrics(self.metrics, model)
            of_model.gauge(engine.NUM_REQUESTS_RUNNING).set(7)
            of_model.gauge(engine.NUM_REQUESTS_WAITING).set(NUM_ON_WORKERS + number)
            by_reason = of_model.gauges(engine.NUM_WAITING_BY_REASON)
            by_reason["capacity",].set(NUM_ON_WORKERS - 1 + number)
            by_reason["deferred",].set(1)
            of_model.gauge(admission.REQUESTS_QUEUED).set(number)
            of_model.counter(engine.NUM_PREEMPTIONS).inc(100)
            of_model.counter(requests.GENERATION_TOKENS).inc(50 * number)
            of_model.counter(requests.PREFIX_CACHE_QUERIES).inc(100)
            of_model.counter(requests.PREFIX_CACHE_HITS).inc(10 * number)
            of_model.histogram(requests.TIME_TO_FIRST_TOKEN).observe(number)
        clock.advance(10)
        self.page = self.metrics.page()


def worker_page(num_preemptions: int) -> bytes:
    metrics = Metrics()
    of_model = ModelMetrics(metrics, "demo")
    of_model.counter(engine.NUM_PREEMPTIONS).inc(num_preemptions)
    of_model.histogram(engine.ITERATION_TOKENS).observe(num_preemptions)
    return metrics.page([engine.NUM_PREEMPTIONS.series, engine.ITERATION_TOKENS.series])


WORKERS = {"decode-0": worker_page(3), 'odd"\\': worker_page(4)}


@pytest.fixture(params=[FIRST, SECOND])
def page(request: pytest.FixtureRequest) -> str:
    """As each of the two routers gives it."""
    pages = {FIRST: Router(1).page, SECOND: Router(2).page}
    own = pages.pop(request.param)
    return mesh_page(request.param, own, pages, WORKERS).decode()


def lines(page: str, beginning: str) -> list[str]:
    return [line for line in page.splitlines() if line.startswith(beginning)]


def test_what_routers_count_stands_there_for_each(page: str) -> None:
    for router, number in ((FIRST, 1), (SECOND, 2)):
        labels = {"router": router, "model_name": "other"}
        assert metric(page, "vllm:generation_tokens_total", **labels) == 50 * number
        assert metric(page, "vllm:time_to_first_token_seconds_sum", **labels) == number
        assert metric(page, "pagemesh:requests_queued", **labels) == number
        assert (
            metric(page, "pagemesh:certificate_expiry_timestamp_seconds", router=router) == number
        )
        assert lines(page, f'process_start_time_seconds{{router="{router}"}} ')


def test_gauges_of_the_mesh_stand_there_once_with_the_queues_of_all_routers(page: str) -> None:
    waiting = 'vllm:num_requests_waiting{engine="0",model_name='
    by_reason = 'vllm:num_requests_waiting_by_reason{engine="0",model_name="demo",reason='
    assert lines(page, "vllm:num_requests_waiting{") == [
        f'{waiting}"demo"}} 8.0',
        f'{waiting}"other"}} 8.0',
    ]
    assert lines(page, by_reason) == [
        f'{by_reason}"capacity"}} 7.0',
        f'{by_reason}"deferred"}} 1.0',
    ]
    assert metric(page, "vllm:num_requests_running", model_name="demo") == 7


def test_older_names_are_of_all_routers_together(page: str) -> None:
    throughput = "vllm:avg_generation_throughput_toks_per_s"
    assert metric(page, throughput, model_name="demo") == 15
    assert metric(page, "vllm:cpu_prefix_cache_hit_rate", model_name="demo") == 0.15
    assert len(lines(page, throughput)) == 2


def test_what_each_worker_counts_comes_from_the_workers(page: str) -> None:
    assert lines(page, "vllm:num_preemptions_total") == [
        'vllm:num_preemptions_total{worker="decode-0",engine="0",model_name="demo"} 3.0',
        'vllm:num_preemptions_total{worker="odd\\"\\\\",engine="0",model_name="demo"} 4.0',
    ]
    assert metric(page, "vllm:iteration_tokens_total_sum", worker="decode-0") == 3


def test_every_metric_has_its_header_once(page: str) -> None:
    for kind in ("HELP", "TYPE"):
        names = [line.split(" ")[2] for line in lines(page, f"# {kind}")]
        assert len(names) == len(set(names)) > 15


def test_no_series_stands_behind_one_whose_name_is_a_part_of_its_own(page: str) -> None:
    found = [line for line in page.splitlines() if "num_requests_waiting" in line]
    assert found[-1].startswith("vllm:num_requests_waiting{")


def test_a_router_that_does_not_answer_changes_no_series_of_the_others() -> None:
    first, second = Router(1).page, Router(2).page
    both = mesh_page(FIRST, first, {SECOND: second}, {}).decode().splitlines()
    alone = mesh_page(FIRST, first, {}, {}).decode().splitlines()
    counted = [line for line in alone if 'router="' in line]
    assert counted and set(counted) <= set(both)
