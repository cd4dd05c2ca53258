"""What a client may take of the gateway: sizes, connections, streams and time, each with its answer."""

from __future__ import annotations

import contextlib
import json
import socket
import struct
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from pagemesh.cli.up.readiness import http_status
from pagemesh.config import HttpLimitsConfig
from tests.gateway.conftest import Gateway, running_gateway

LIMITS = HttpLimitsConfig(
    max_body_size=1,
    max_header_size=8,
    max_connections=8,
    max_concurrent_streams=5,
    body_timeout=0.5,
    max_request_time=1.5,
)
HEAD = "POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"


@pytest.fixture(scope="module")
def limited(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    with running_gateway(tmp_path_factory.mktemp("limited"), limits=LIMITS) as running:
        yield running


@contextlib.contextmanager
def connected(gateway: Gateway) -> Iterator[socket.socket]:
    with socket.create_connection(("127.0.0.1", gateway.config.port), timeout=20) as raw:
        yield raw


def answer(raw: socket.socket) -> tuple[int, dict[str, Any]]:
    """Status and error object of what comes until the connection ends."""
    received = b""
    with contextlib.suppress(ConnectionResetError):
        while piece := raw.recv(65536):
            received += piece
            head, _, body = received.partition(b"\r\n\r\n")
            if body.endswith(b"}"):
                break
    return int(head.split()[1]), json.loads(body)["error"]


def test_a_body_that_says_it_is_too_long_is_refused_before_it_comes(limited: Gateway) -> None:
    with connected(limited) as raw:
        raw.sendall(f"{HEAD}content-length: {2**20 + 1}\r\n\r\n".encode())
        status, error = answer(raw)
    assert (status, error["code"]) == (413, "request_too_large")
    assert error["message"] == "The request's body is larger than 1 MiB."


def test_a_body_that_does_not_say_so_is_refused_when_it_is(limited: Gateway) -> None:
    with connected(limited) as raw:
        raw.sendall(f"{HEAD}transfer-encoding: chunked\r\n\r\n".encode())
        with contextlib.suppress(ConnectionError):
            for _ in range(20):
                raw.sendall(b"10000\r\n" + b" " * 0x10000 + b"\r\n")
        status, error = answer(raw)
    assert (status, error["code"]) == (413, "request_too_large")


def test_a_client_that_sends_on_still_reads_the_refusal(limited: Gateway) -> None:
    response = httpx.post(f"{limited.url}/v1/completions", content=b" " * (64 << 20), timeout=30)
    assert response.status_code == 413


LATE = "The request did not arrive in time: its headers within 0.5 s, all of it within 0.5 s."


def test_a_body_that_never_ends_is_given_up(limited: Gateway) -> None:
    with connected(limited) as raw:
        raw.sendall(f'{HEAD}x-request-id: slow\r\ncontent-length: 1000\r\n\r\n{{"mod'.encode())
        status, error = answer(raw)
    assert (status, error["code"], error["message"]) == (408, "request_timeout", LATE)
    # And not because the longest time of a request was over.
    assert limited.log_entry("slow")["details"] == "request_overall_timeout"


def test_headers_that_never_end_are_given_up(limited: Gateway) -> None:
    with connected(limited) as raw:
        raw.sendall(HEAD.encode())
        status, error = answer(raw)
    assert (status, error["code"], error["message"]) == (408, "request_timeout", LATE)


@pytest.mark.parametrize(
    "headers",
    [{"x-long": "a" * 9000}, {f"x-{index}": "a" for index in range(120)}],
    ids=["long", "many"],
)
def test_headers_that_are_too_much_are_refused(limited: Gateway, headers: dict[str, str]) -> None:
    response = httpx.get(f"{limited.url}/v1/models", headers=headers)
    assert response.status_code == 431
    assert response.json()["error"]["code"] == "headers_too_large"


def test_an_answer_that_takes_too_long_is_ended(limited: Gateway) -> None:
    started = time.monotonic()
    body, named = {"model": "paced:endless"}, {"x-request-id": "endless"}
    url = f"{limited.url}/v1/chat/completions"
    response = httpx.post(url, json=body, headers=named, timeout=20)
    # Envoy subtracts from the limit what has passed when it has found the route, and counts the rest
    # from before that: where it had to wait for a processor there, it ends as much too early. A
    # second is above every other limit here.
    assert time.monotonic() - started >= 1
    assert limited.log_entry("endless")["details"] == "max_duration_timeout"
    assert response.status_code == 504
    assert response.json()["error"]["code"] == "timeout"
    assert limited.router.openai.ended.get(timeout=5) == "endless"


def test_connections_above_the_limit_are_closed(tmp_path: Path) -> None:
    with (
        running_gateway(tmp_path, limits=HttpLimitsConfig(max_connections=3)) as running,
        contextlib.ExitStack() as opened,
    ):
        connections = [opened.enter_context(connected(running)) for _ in range(3)]
        for connection in connections:
            connection.sendall(b"GET /health HTTP/1.1\r\nhost: x\r\n\r\n")
            assert connection.recv(65536).startswith(b"HTTP/1.1 200 ")
        # Whoever watches over the gateway is not a client: it has room, and makes none when it leaves.
        for _ in range(5):
            assert http_status(tmp_path / "local.sock", "/health") == 200
        with connected(running) as refused, contextlib.suppress(ConnectionError):
            refused.sendall(b"GET /health HTTP/1.1\r\nhost: x\r\n\r\n")
            assert refused.recv(65536) == b""
        connections[0].close()
        deadline = time.monotonic() + 20
        served = b""
        while not served and time.monotonic() < deadline:
            with connected(running) as again, contextlib.suppress(ConnectionError):
                again.sendall(b"GET /health HTTP/1.1\r\nhost: x\r\n\r\n")
                served = again.recv(65536)
        assert served.startswith(b"HTTP/1.1 200 ")


def test_http2_clients_are_told_how_many_streams_they_may_open(limited: Gateway) -> None:
    settings = 4
    with connected(limited) as raw:
        raw.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes((0, 0, 0, settings, 0, 0, 0, 0, 0)))
        received = b""
        while len(received) < 9 or len(received) < 9 + int.from_bytes(received[:3]):
            received += raw.recv(65536)
    assert received[3] == settings
    values = dict(struct.iter_unpack(">HI", received[9 : 9 + int.from_bytes(received[:3])]))
    max_concurrent_streams = 3
    assert values[max_concurrent_streams] == LIMITS.max_concurrent_streams


def test_older_proxies_may_speak_http_1_0(limited: Gateway) -> None:
    with connected(limited) as raw:
        raw.sendall(b"GET /v1/models HTTP/1.0\r\n\r\n")
        received = b""
        while piece := raw.recv(65536):
            received += piece
    assert received.startswith((b"HTTP/1.1 200 ", b"HTTP/1.0 200 "))
    assert b"transfer-encoding" not in received
    assert received.endswith(b'"object": "model"}]}')
