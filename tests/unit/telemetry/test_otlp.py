"""Spans on their way to a receiver, and what happens when that does not take them."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from pagemesh.config import TracesConfig
from pagemesh.errors import ConfigError
from pagemesh.telemetry import otlp
from pagemesh.telemetry.metrics import Metrics
from pagemesh.telemetry.otlp import OtlpTraces, Receiver
from pagemesh.telemetry.spans import Traces, read_trace, start_traces, within
from tests.support.collector import running_collector
from tests.support.trace_receiver import TraceReceiver, running_http_receiver, running_receiver
from tests.support.waiting import wait_until

UNSAMPLED = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-00"


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "5")


@pytest.fixture
def receiver() -> Iterator[TraceReceiver]:
    with running_receiver() as receiver:
        yield receiver


def make_traces(receiver: TraceReceiver) -> OtlpTraces:
    return OtlpTraces(Receiver(f"http://{receiver.address}"), "service", "1.0")


def make_span(traces: OtlpTraces | Traces) -> None:
    traces.tracer.start_span("name").end()


def test_spans_say_whose_they_are_and_keep_the_vendors_data(receiver: TraceReceiver) -> None:
    traces = make_traces(receiver)
    caller = read_trace("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", "a=1")
    traces.tracer.start_span("name", within(caller)).end()
    traces.tracer.start_span("none", within(read_trace(UNSAMPLED))).end()
    traces.close()
    (span,) = receiver.spans
    assert (span.name, span.parent_id) == ("name", "b7ad6b7169203331")
    assert span.span.trace_state == "a=1"
    assert span.resource["service.name"] == "service"


async def test_a_receiver_that_takes_nothing_is_logged_when_it_begins_and_when_it_is_over(
    receiver: TraceReceiver,
) -> None:
    traces = make_traces(receiver)
    receiver.refuses = True
    with capture_logs() as logs:
        for number in (1, 2):
            make_span(traces)
            await wait_until(lambda n=number: receiver.num_calls == n, "another batch")  # type: ignore[misc]
        receiver.refuses = False
        make_span(traces)
        await wait_until(lambda: len(receiver.spans) == 1, "a span")
        traces.close()
    assert [line["event"] for line in logs] == [
        "traces cannot be exported",
        "traces are exported again",
    ]
    assert "StatusCode.INVALID_ARGUMENT, error details: refused" in logs[0]["error"]
    assert logs[1]["num_lost_spans"] == 2


async def test_more_spans_than_the_queue_takes_are_dropped_and_counted(
    monkeypatch: pytest.MonkeyPatch, receiver: TraceReceiver, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("OTEL_BSP_MAX_QUEUE_SIZE", "4")
    monkeypatch.setenv("OTEL_BSP_MAX_EXPORT_BATCH_SIZE", "2")
    receiver.gate.clear()
    lost: list[int] = []
    place = Receiver(f"http://{receiver.address}")
    traces = OtlpTraces(place, "service", "1.0", on_lost=lost.append)
    make_span(traces)
    await wait_until(lambda: receiver.num_calls == 1, "the first batch")
    for _ in range(100):
        make_span(traces)
    receiver.gate.set()
    traces.close()
    assert len(receiver.spans) == 5
    assert sum(lost) == 96
    assert caplog.records == []


@pytest.mark.parametrize("size", ["none", "0", "-1"])
def test_a_queue_whose_size_is_no_number_is_refused(
    monkeypatch: pytest.MonkeyPatch, receiver: TraceReceiver, size: str
) -> None:
    monkeypatch.setenv("OTEL_BSP_MAX_QUEUE_SIZE", size)
    with pytest.raises(ConfigError, match=f"OTEL_BSP_MAX_QUEUE_SIZE is '{size}'"):
        make_traces(receiver)


def test_closing_gives_up_a_receiver_that_does_not_answer(
    monkeypatch: pytest.MonkeyPatch, receiver: TraceReceiver
) -> None:
    monkeypatch.setattr(otlp, "EXPORT_TIMEOUT", 30.0)
    monkeypatch.setattr(otlp, "CLOSE_TIMEOUT", 0.5)
    receiver.gate.clear()
    traces = make_traces(receiver)
    make_span(traces)
    started_at = time.monotonic()
    traces.close()
    traces.close()
    assert 0.5 <= time.monotonic() - started_at < 2
    # What was on its way was broken off.
    assert [thread for thread in threading.enumerate() if thread.name == "traces"] == []


def test_by_http_spans_go_to_the_path_with_the_headers(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    # The library would quote a value that it finds odd.
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_HEADERS", "authorization=Basic;key")
    with running_http_receiver() as receiver:
        url = f"http://{receiver.address}/api/public/otel/v1/traces"
        place = Receiver(url, "http/protobuf", {"authorization": "Basic;key", "x-version": "4"})
        assert "key" not in repr(place)
        traces = OtlpTraces(place, "service", "1.0")
        make_span(traces)
        traces.close()
    (span,) = receiver.spans
    assert (span.name, span.resource["service.name"]) == ("name", "service")
    assert receiver.path == "/api/public/otel/v1/traces"
    assert receiver.headers["content-type"] == "application/x-protobuf"
    assert receiver.headers["authorization"] == "Basic;key"
    assert receiver.headers["x-version"] == "4"
    assert caplog.records == []


@pytest.mark.parametrize("protocol", ["grpc", "http/protobuf"])
def test_a_process_sends_what_the_environment_says(
    monkeypatch: pytest.MonkeyPatch, protocol: str
) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_HEADERS", "Authorization=Basic%20key")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_PROTOCOL", protocol)
    running = running_receiver() if protocol == "grpc" else running_http_receiver()
    with running as receiver:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", f"http://{receiver.address}/below")
        traces = start_traces(TracesConfig(), "router", Metrics())
        make_span(traces)
        traces.close()
    assert [span.resource["service.name"] for span in receiver.spans] == ["pagemesh-router"]
    assert receiver.headers["authorization"] == "Basic key"
    assert receiver.path == ("" if protocol == "grpc" else "/below/v1/traces")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_HEADERS", "no header")
    with pytest.raises(ConfigError, match="OTEL_EXPORTER_OTLP_HEADERS has no header in place 1"):
        start_traces(TracesConfig(), "router", Metrics())


def test_what_a_receiver_refuses_by_http_is_logged_without_the_keys() -> None:
    with running_http_receiver() as receiver, capture_logs() as logs:
        receiver.refuses = True
        place = Receiver(
            f"http://{receiver.address}/t", "http/protobuf", {"authorization": "secret"}
        )
        traces = OtlpTraces(place, "service", "1.0")
        make_span(traces)
        traces.close()
    (line,) = logs
    assert line["endpoint"] == f"http://{receiver.address}/t"
    assert line["error"] == "Failed to export spans batch code: 400, reason: as a test wants it"
    assert "secret" not in str(line)


def test_a_real_collector_takes_spans_by_http(receiver: TraceReceiver, tmp_path: Path) -> None:
    with running_collector(tmp_path, receiver.address, "http/protobuf") as collector:
        place = Receiver(f"http://{collector}/v1/traces", "http/protobuf")
        traces = OtlpTraces(place, "service", "1.0")
        make_span(traces)
        traces.close()
        deadline = time.monotonic() + 20
        while not receiver.spans and time.monotonic() < deadline:
            time.sleep(0.02)
    assert [span.name for span in receiver.spans] == ["name"]
