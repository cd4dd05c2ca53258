"""Scripts that look for a name anywhere in a line, and keep the last one, find the metric that they mean."""

from __future__ import annotations

from itertools import permutations

from pagemesh.telemetry.metrics import Metrics
from pagemesh.telemetry.metrics.admission import ADMISSION_REJECTIONS
from pagemesh.telemetry.metrics.engine import NUM_REQUESTS_WAITING, NUM_WAITING_BY_REASON
from pagemesh.telemetry.metrics.registry import ModelMetrics, in_order

PARTS = {
    "vllm:num_requests_waiting": "vllm:num_requests_waiting_by_reason",
    "pagemesh:preemptions_total": "vllm:num_preemptions_total",
}
"""Names, and those that have them as a part, whatever stands in front of them and behind."""


def test_no_name_stands_behind_one_that_is_a_part_of_it() -> None:
    for names in permutations((*PARTS, *PARTS.values())):
        ordered = in_order(names, str)
        assert sorted(ordered) == sorted(names)
        for part, whole in PARTS.items():
            assert ordered.index(whole) < ordered.index(part), names


def test_what_has_nothing_in_common_stays_where_it_was() -> None:
    assert in_order("badc", str) == list("badc")


def test_a_page_has_this_order_and_names_that_are_wanted_alone() -> None:
    metrics = Metrics()
    of_model = ModelMetrics(metrics, "demo")
    of_model.gauge(NUM_REQUESTS_WAITING).set(3)
    of_model.gauges(NUM_WAITING_BY_REASON)["capacity",].set(2)
    of_model.counters(ADMISSION_REJECTIONS)["max_num_queued_reqs",].inc()
    hits = [line for line in metrics.page().decode().splitlines() if "num_requests_waiting" in line]
    assert hits[-1] == 'vllm:num_requests_waiting{engine="0",model_name="demo"} 3.0'
    names = (NUM_REQUESTS_WAITING.name, ADMISSION_REJECTIONS.series)
    wanted = metrics.page(names).decode().splitlines()
    assert {line.partition("{")[0] for line in wanted if not line.startswith("#")} == set(names)
