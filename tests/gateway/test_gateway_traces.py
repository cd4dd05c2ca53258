"""Envoy's spans, and what it tells the router of the trace."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import psutil
import pytest

from pagemesh.config import TracesConfig
from tests.gateway.conftest import Gateway, running_gateway
from tests.support.ports import free_port
from tests.support.trace_receiver import (
    ReceivedSpan,
    TraceReceiver,
    running_http_receiver,
    running_receiver,
)

TRACE_ID = "0af7651916cd43dd8448eb211c80319c"
PARENT_ID = "b7ad6b7169203331"
PATH = "/v1/chat/completions"
HEADERS = "x-version=4, authorization=Basic%20c2VjcmV0%25HOST%25=="
SECRET = "Basic c2VjcmV0%HOST%=="


@pytest.fixture(scope="module")
def receiver() -> Iterator[TraceReceiver]:
    with running_receiver() as running:
        yield running


@pytest.fixture(scope="module")
def traced(receiver: TraceReceiver, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    folder = tmp_path_factory.mktemp("traced")
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("OTEL_EXPORTER_OTLP_HEADERS", HEADERS)
        with running_gateway(folder, traces=TracesConfig(receiver.address)) as running:
            yield running


def ask(gateway: Gateway, query: str = "", **headers: str) -> str:
    """The traceparent that the router is told."""
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    response = httpx.post(
        gateway.url + PATH + query, json={"model": "size"}, headers=named, timeout=10
    )
    assert response.status_code == 200
    return gateway.router.openai.metadata.get(timeout=5).get("traceparent", "")


def span_of(receiver: TraceReceiver, request_id: str) -> ReceivedSpan:
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        for span in receiver.spans:
            if span.attributes["pagemesh.request_id"] == request_id:
                return span
        time.sleep(0.02)
    raise AssertionError(f"no span of {request_id}")


def test_a_request_begins_a_trace_of_which_the_routers_span_is_a_child(
    traced: Gateway, receiver: TraceReceiver
) -> None:
    told = ask(traced, x_request_id="begins")
    span = span_of(receiver, "begins")
    assert told == f"00-{span.trace_id}-{span.span_id}-01"
    assert (span.name, span.parent_id) == (f"POST {PATH}", "")
    assert span.resource["service.name"] == "pagemesh-gateway"
    assert span.attributes["http.status_code"] == "200"
    assert traced.log_entry("begins")["trace_id"] == span.trace_id


def test_a_clients_trace_goes_on(traced: Gateway, receiver: TraceReceiver) -> None:
    told = ask(traced, x_request_id="goes-on", traceparent=f"00-{TRACE_ID}-{PARENT_ID}-01")
    span = span_of(receiver, "goes-on")
    assert (span.trace_id, span.parent_id) == (TRACE_ID, PARENT_ID)
    assert told == f"00-{TRACE_ID}-{span.span_id}-01"


def test_what_a_client_does_not_record_is_not_recorded(
    traced: Gateway, receiver: TraceReceiver
) -> None:
    told = ask(traced, x_request_id="unsampled", traceparent=f"00-{TRACE_ID}-{PARENT_ID}-00")
    assert (told[:35], told[-2:]) == (f"00-{TRACE_ID}", "00")
    ask(traced, x_request_id="next")
    span_of(receiver, "next")
    assert "unsampled" not in {s.attributes["pagemesh.request_id"] for s in receiver.spans}


def test_a_span_has_no_query_string(traced: Gateway, receiver: TraceReceiver) -> None:
    ask(traced, "?api_key=hidden", x_request_id="query")
    assert "hidden" not in str(span_of(receiver, "query").span)


def test_of_traces_that_begin_here_the_share_is_recorded_that_is_wanted(
    receiver: TraceReceiver, tmp_path: Path
) -> None:
    with running_gateway(tmp_path, traces=TracesConfig(receiver.address, 0.0)) as gateway:
        forced = {"x_client_trace_id": "a", "x_envoy_force_trace": "true"}
        assert {ask(gateway, **forced)[-2:] for _ in range(5)} == {"00"}
        assert ask(gateway, traceparent=f"00-{TRACE_ID}-{PARENT_ID}-01")[-2:] == "01"


def test_a_collector_that_is_away_costs_no_request(tmp_path: Path) -> None:
    away = TracesConfig(f"127.0.0.1:{free_port()}")
    with running_gateway(tmp_path, traces=away) as gateway:
        assert ask(gateway)[-2:] == "01"
        assert httpx.get(f"{gateway.url}/health", timeout=5).status_code == 200


def test_without_an_endpoint_what_clients_say_is_passed_on_unchanged(gateway: Gateway) -> None:
    given = f"00-{TRACE_ID}-{PARENT_ID}-01"
    assert ask(gateway, traceparent=given) == given
    assert ask(gateway) == ""


def check_headers(gateway: Gateway, receiver: TraceReceiver) -> None:
    """They came with the spans, unchanged, and stand neither on a command line nor in what Envoy shows of itself."""
    assert (receiver.headers["authorization"], receiver.headers["x-version"]) == (SECRET, "4")
    process = psutil.Process(gateway.process.pid)
    shown = [" ".join(each.cmdline()) for each in (process, *process.children(recursive=True))]
    with httpx.Client(transport=httpx.HTTPTransport(uds=gateway.config.admin_socket)) as admin:
        shown.append(admin.get("http://envoy/config_dump").text)
    assert len(shown) >= 3
    assert all("PAGEMESH_OTLP_HEADER_2" in text for text in shown[1:])
    assert [text for text in shown if "c2VjcmV0" in text] == []


def test_headers_go_with_spans_and_are_shown_nowhere(
    traced: Gateway, receiver: TraceReceiver
) -> None:
    ask(traced, x_request_id="headers")
    span_of(receiver, "headers")
    check_headers(traced, receiver)


def test_spans_go_by_http_to_the_path(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TRACES_HEADERS", HEADERS)
    with running_http_receiver() as receiver:
        url = f"http://{receiver.address}/api/public/otel/v1/traces"
        config = TracesConfig(url, otlp_traces_protocol="http/protobuf")
        with running_gateway(tmp_path, traces=config) as gateway:
            ask(gateway, x_request_id="http")
            span = span_of(receiver, "http")
            check_headers(gateway, receiver)
    assert span.name == f"POST {PATH}"
    assert receiver.path == "/api/public/otel/v1/traces"
    assert receiver.headers["host"] == receiver.address
