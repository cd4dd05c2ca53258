"""Which routes there are, with which methods, and what clients hear of the others."""

from __future__ import annotations

import re
import socket

import httpx
import pytest

from pagemesh.gateway.transcoding import HttpRoute, http_routes
from tests.gateway.conftest import Gateway

METHODS = ("GET", "POST", "PUT", "PATCH", "DELETE")


@pytest.mark.parametrize("path", ["/v1/images", "/v1", "/healthz", "/v3/models", "/v3/models/"])
def test_an_unknown_route_is_404_and_named(gateway: Gateway, path: str) -> None:
    response = httpx.get(gateway.url + path + "?limit=1")
    assert response.status_code == 404
    assert response.json()["error"] == {
        "message": f"Unknown route: GET {path}",
        "type": "invalid_request_error",
        "param": None,
        "code": "unknown_url",
    }


def test_a_slash_too_many_leads_to_the_route_without_it(gateway: Gateway) -> None:
    response = httpx.get(gateway.url + "/v1/models/?a=b/")
    assert response.status_code == 307
    assert response.headers["location"] == gateway.url + "/v1/models?a=b/"
    assert httpx.get(gateway.url + "/v1/models/", follow_redirects=True).status_code == 200


def test_a_body_goes_along_where_a_slash_is_too_many(gateway: Gateway) -> None:
    url = gateway.url + "/v1/chat/completions/"
    response = httpx.post(url, json={"model": "size"}, follow_redirects=True)
    assert response.json() == {"num_bytes": 16}


def test_a_request_to_nobody_is_told_what_it_lacks(gateway: Gateway) -> None:
    with socket.create_connection(("127.0.0.1", gateway.config.port), timeout=10) as raw:
        raw.sendall(b"GET /v1/models HTTP/1.1\r\nconnection: close\r\n\r\n")
        received = b""
        while piece := raw.recv(65536):
            received += piece
    assert received.startswith(b"HTTP/1.1 400 ")
    assert b'"The request has no header host, or :authority, which says to whom' in received


def test_what_only_grpc_clients_call_is_no_route(gateway: Gateway) -> None:
    path = "/pagemesh.v1.OpenAI/ChatCompletions"
    response = httpx.post(gateway.url + path, json={"model": "size"})
    assert response.status_code == 404
    assert response.json()["error"]["message"] == f"Unknown route: POST {path}"


def allowed(route: HttpRoute) -> str:
    head = ("HEAD",) if "GET" in route.methods else ()
    return ", ".join((*route.methods, *head, "OPTIONS"))


@pytest.mark.parametrize("route", http_routes(), ids=lambda route: route.path)
def test_every_route_says_what_it_does(gateway: Gateway, route: HttpRoute) -> None:
    path = re.sub(r"\{.*?\}", "name", route.path)
    response = httpx.options(gateway.url + path)
    assert (response.status_code, response.content) == (204, b"")
    assert response.headers["allow"] == allowed(route)


@pytest.mark.parametrize("path", ["/v1/models", "/v1/models/m"])
def test_head_is_get_without_the_body(gateway: Gateway, path: str) -> None:
    with socket.create_connection(("127.0.0.1", gateway.config.port), timeout=10) as raw:
        asked = f"HEAD {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n"
        raw.sendall(asked.encode())
        received = b""
        while piece := raw.recv(65536):
            received += piece
    assert received.startswith(b"HTTP/1.1 200 ")
    assert received.endswith(b"\r\n\r\n")
    assert received.count(b"\r\n\r\n") == 1


def test_head_of_what_has_no_get_is_405(gateway: Gateway) -> None:
    response = httpx.head(f"{gateway.url}/v1/completions")
    assert response.status_code == 405
    assert response.headers["allow"] == "POST, OPTIONS"


def test_answers_say_how_long_the_router_took_and_nothing_of_envoy(gateway: Gateway) -> None:
    headers = httpx.get(f"{gateway.url}/v1/models").headers
    assert int(headers["openai-processing-ms"]) >= 0
    assert not [name for name in headers if name.startswith(("x-envoy", "grpc-"))]


@pytest.mark.parametrize("route", http_routes(), ids=lambda route: route.path)
def test_every_route_knows_its_methods(gateway: Gateway, route: HttpRoute) -> None:
    path = re.sub(r"\{.*?\}", "name", route.path)
    for method in METHODS:
        response = httpx.request(method, gateway.url + path, json={"model": "size"})
        if method in route.methods:
            # The stand-in router may lack it, which is not the gateway's answer.
            assert response.status_code in (200, 501)
            continue
        assert response.status_code == 405
        assert response.headers["allow"] == allowed(route)
        error = response.json()["error"]
        assert error["message"] == f"{method} is not allowed on {path}"
        assert error["type"] == "invalid_request_error"
