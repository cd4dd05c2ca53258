"""How decisions are counted: by what the chosen way holds of a prompt, beside what anybody holds."""

from __future__ import annotations

import pytest

from pagemesh.router.decision_metrics import DecisionMetrics
from pagemesh.router.routing.decision import Decision, Reasons
from pagemesh.router.routing.route import Route
from pagemesh.telemetry.metrics import Metrics
from tests.unit.router.routing_builders import make_candidate


def decision(available: int, captured: int) -> Decision:
    return Decision(Route(make_candidate()), Reasons("kv_aware", (), 1, {}), available, captured)


@pytest.mark.parametrize(
    ("made", "outcome"),
    [
        (decision(96, 96), "most"),
        (decision(96, 32), "less"),
        (decision(0, 0), "none"),
        (None, "nobody"),
    ],
    ids=["most", "less", "none", "nobody"],
)
def test_a_decision_counts_once_under_its_policy(made: Decision | None, outcome: str) -> None:
    metrics = Metrics()
    DecisionMetrics(metrics, "demo", "kv_aware").on_decision(made)
    counted = {
        (sample.labels["policy"], sample.labels["outcome"])
        for family in metrics.registry.collect()
        for sample in family.samples
        if sample.name == "pagemesh:routing_decisions_total" and sample.value
    }
    assert counted == {("kv_aware", outcome)}


def test_lookups_are_timed_and_those_without_an_answer_counted() -> None:
    metrics = Metrics()
    watched = DecisionMetrics(metrics, "demo", "kv_aware")
    watched.on_lookup(0.25, is_answered=True)
    watched.on_lookup(0.5, is_answered=False)
    value = metrics.registry.get_sample_value
    assert value("pagemesh:lookup_seconds_sum", {"outcome": "answered"}) == 0.25
    assert value("pagemesh:lookup_seconds_sum", {"outcome": "failed"}) == 0.5
    assert value("pagemesh:routing_without_index_total") == 1


def test_only_decisions_that_were_made_are_timed() -> None:
    metrics = Metrics()
    watched = DecisionMetrics(metrics, "demo", "kv_aware")
    with watched.deciding():
        pass
    with pytest.raises(ValueError, match="odd"), watched.deciding():
        raise ValueError("odd")
    assert metrics.registry.get_sample_value("pagemesh:routing_seconds_count") == 1
