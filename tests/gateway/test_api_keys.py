"""Requests without a key are refused before their body is read; the router judges the others."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from typing import Any

import grpc
import httpx
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from pagemesh.v1 import inference_pb2, inference_pb2_grpc
from tests.gateway.conftest import Gateway, running_gateway
from tests.support.late_imports import openai

REFUSED = {
    "message": "No API key was given. Send one in the header authorization, as Bearer KEY, or in x-api-key.",
    "type": "invalid_request_error",
    "param": None,
    "code": "invalid_api_key",
}


@pytest.fixture(scope="module")
def locked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    with running_gateway(tmp_path_factory.mktemp("locked"), api_key_required=True) as running:
        yield running


@pytest.mark.parametrize("path", ["/v1/models", "/unknown", "/healthz", "/v1/models/m"])
def test_without_a_key_all_else_is_401(locked: Gateway, path: str) -> None:
    response = httpx.get(locked.url + path)
    assert response.status_code == 401
    assert response.headers["www-authenticate"] == "Bearer"
    assert response.json()["error"] == REFUSED


@pytest.mark.parametrize(
    "path",
    [
        "/",
        "/health",
        "/ping",
        "/ready?x=1",
        "/version",
        "/openapi.json",
        "/metrics",
        "/v1/../health",
    ],
)
def test_open_paths_need_no_key(locked: Gateway, path: str) -> None:
    # The stand-in router lacks some of them.
    assert httpx.get(locked.url + path).status_code in (200, 404, 501)


def test_an_open_path_leads_nowhere_else(locked: Gateway) -> None:
    with socket.create_connection(("127.0.0.1", locked.config.port), timeout=10) as raw:
        raw.sendall(b"GET /health/../v1/models HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n")
        assert raw.recv(65536).startswith(b"HTTP/1.1 401 ")


@pytest.mark.parametrize("header", ["authorization", "x-api-key"])
def test_the_router_sees_the_key(locked: Gateway, header: str) -> None:
    seen = locked.router.openai.metadata
    while not seen.empty():
        seen.get()
    url = f"{locked.url}/v1/chat/completions"
    assert httpx.post(url, json={"model": "size"}, headers={header: "k"}).status_code == 200
    assert seen.get(timeout=5)[header] == "k"


def test_the_body_is_not_waited_for(locked: Gateway) -> None:
    with socket.create_connection(("127.0.0.1", locked.config.port), timeout=10) as raw:
        raw.sendall(
            b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-length: 1000\r\n\r\n"
        )
        assert raw.recv(65536).startswith(b"HTTP/1.1 401 ")


def test_the_openai_client_raises_what_it_does_elsewhere(locked: Gateway) -> None:
    client = openai.OpenAI(base_url=f"{locked.url}/v1", api_key="k", max_retries=0)
    with pytest.raises(openai.AuthenticationError) as caught:
        client.models.list(extra_headers={"Authorization": openai.Omit()})
    assert caught.value.body == REFUSED


def test_native_grpc_without_a_key_is_unauthenticated(locked: Gateway) -> None:
    with grpc.insecure_channel(locked.address) as channel:
        stub = inference_pb2_grpc.InferenceStub(channel)
        request = inference_pb2.GenerateRequest(text="hello")
        with pytest.raises(grpc.RpcError) as caught:
            list(stub.Generate(request, timeout=5))
        assert caught.value.code() is grpc.StatusCode.UNAUTHENTICATED
        key = (("authorization", "Bearer k"),)
        assert [answer.text for answer in stub.Generate(request, timeout=5, metadata=key)] == [
            "hello"
        ]
        health: Any = health_pb2_grpc.HealthStub(channel)
        answer = health.Check(health_pb2.HealthCheckRequest(), timeout=5)
        assert answer.status == health_pb2.HealthCheckResponse.SERVING
