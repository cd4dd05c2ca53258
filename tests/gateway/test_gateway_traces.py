"""Envoy's spans, and what it tells the router of the trace."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from pagemesh.config import TracesConfig
from tests.gateway.conftest import Gateway, running_gateway
from tests.support.ports import free_port
from tests.support.trace_receiver import ReceivedSpan, TraceReceiver, running_receiver

TRACE_ID = "0af7651916cd43dd8448eb211c80319c"
PARENT_ID = "b7ad6b7169203331"
PATH = "/v1/chat/completions"


@pytest.fixture(scope="module")
def receiver() -> Iterator[TraceReceiver]:
    with running_receiver() as running:
        yield running


@pytest.fixture(scope="module")
def traced(receiver: TraceReceiver, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    folder = tmp_path_factory.mktemp("traced")
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
