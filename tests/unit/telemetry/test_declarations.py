"""What is declared of metrics is complete, and metrics are made as declared."""

from __future__ import annotations

import re

import pytest
from prometheus_client.exposition import generate_latest

from pagemesh.telemetry.metrics import Metrics, transfer
from pagemesh.telemetry.metrics.catalog import ABSENT, all_specs
from pagemesh.telemetry.metrics.labels import PATH, ROLE
from pagemesh.telemetry.metrics.registry import ModelMetrics
from pagemesh.telemetry.metrics.requests import GENERATION_TOKENS, REQUEST_SUCCESS
from pagemesh.telemetry.metrics.routing import KV_PATH_SECONDS, WORKERS
from pagemesh.telemetry.metrics.specs import (
    CounterSpec,
    ForeignSpec,
    GaugeSpec,
    HistogramSpec,
    Label,
    Process,
    Spec,
    Unit,
    kind_of,
)

SPECS = {spec.name: spec for spec in all_specs()}
OURS = [spec for spec in SPECS.values() if not isinstance(spec, ForeignSpec)]
PROBE = GaugeSpec(
    name="pagemesh:probe",
    help="A probe.",
    unit=Unit.COUNT,
    labels=(Label("place", source="the test"),),
    processes=(Process.ROUTER,),
    look_at="nothing",
)


@pytest.mark.parametrize("spec", SPECS.values(), ids=SPECS)
def test_a_declaration_is_complete(spec: Spec) -> None:
    assert spec.help.endswith(".")
    assert spec.look_at and not spec.look_at.endswith(".")
    assert spec.processes
    assert len(set(spec.label_names)) == len(spec.labels)
    assert kind_of(spec) in ("counter", "gauge", "histogram")


@pytest.mark.parametrize("spec", OURS, ids=lambda spec: spec.name)
def test_our_names_say_what_they_are_of(spec: Spec) -> None:
    assert re.fullmatch(r"(vllm|pagemesh):[a-z0-9_]+", spec.name)
    if isinstance(spec, CounterSpec):
        assert not spec.name.endswith("_total")
    if isinstance(spec, HistogramSpec):
        assert list(spec.buckets) == sorted(set(spec.buckets))
        assert spec.name.endswith("_seconds") == (spec.unit is Unit.SECONDS)
    if spec.name.startswith("vllm:"):
        assert spec.label_names[:2] == ("model_name", "engine")


@pytest.mark.parametrize("spec", SPECS.values(), ids=SPECS)
def test_what_it_says_to_look_at_exists(spec: Spec) -> None:
    for name in re.findall(r"\b(?:vllm|pagemesh):[a-z0-9_]+", spec.help + spec.look_at):
        assert name in SPECS


def test_no_two_declarations_have_one_name() -> None:
    names = [spec.name for spec in all_specs()]
    assert len(names) == len(set(names)) > 100
    assert not ABSENT.keys() & set(names)


def test_all_of_ours_fit_into_one_registry() -> None:
    metrics = Metrics()
    for spec in OURS:
        if isinstance(spec, CounterSpec):
            assert metrics.counter(spec) is metrics.counter(spec)
        elif isinstance(spec, GaugeSpec):
            assert metrics.gauge(spec) is metrics.gauge(spec)
        elif isinstance(spec, HistogramSpec):
            assert metrics.histogram(spec) is metrics.histogram(spec)


def test_series_whose_labels_are_known_are_there_from_the_start() -> None:
    metrics = Metrics()
    metrics.counter(transfer.KV_PULLS)
    metrics.histogram(KV_PATH_SECONDS)
    metrics.counter(transfer.KV_IMPORT_FAILURES)
    page = generate_latest(metrics.registry).decode()
    assert re.findall(r'kv_pulls_total{outcome="(\w+)",path="pull"} 0\.0', page) == [
        "complete",
        "partial",
        "failed",
        "cancelled",
    ]
    assert re.findall(r'kv_path_seconds_count{path="(\w+)"} 0\.0', page) == list(PATH.values)
    # Who failed and why is not known beforehand.
    assert "kv_import_failures_total{" not in page


def test_the_series_of_a_model_have_its_name_and_an_engine() -> None:
    metrics = Metrics()
    of_model = ModelMetrics(metrics, "demo")
    of_model.counter(GENERATION_TOKENS).inc(3)
    of_model.counters(REQUEST_SUCCESS)["length",].inc(2)
    value = metrics.registry.get_sample_value
    labels = {"model_name": "demo", "engine": "0"}
    assert value("vllm:generation_tokens_total", labels) == 3
    ended = "vllm:request_success_total"
    assert value(ended, {**labels, "finished_reason": "length"}) == 2
    assert value(ended, {**labels, "finished_reason": "abort"}) == 0


def test_series_that_come_and_go_are_asked_for_when_somebody_scrapes() -> None:
    metrics, places = Metrics(), ["a", "b"]
    metrics.read_at_scrape(PROBE, lambda: [((place,), 1.0) for place in places])
    assert metrics.registry.get_sample_value("pagemesh:probe", {"place": "b"}) == 1
    places.remove("b")
    assert metrics.registry.get_sample_value("pagemesh:probe", {"place": "b"}) is None
    assert metrics.registry.get_sample_value("pagemesh:probe", {"place": "a"}) == 1


def test_a_label_needs_values_or_their_source() -> None:
    with pytest.raises(AssertionError, match="role needs values or a source"):
        Label("role")
    with pytest.raises(KeyError, match="pagemesh:workers has no label 'pod'"):
        WORKERS.label("pod")
    assert WORKERS.label("role") is ROLE
