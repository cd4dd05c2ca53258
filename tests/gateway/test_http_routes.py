"""Which routes there are, with which methods, and what clients hear of the others."""

from __future__ import annotations

import re

import httpx
import pytest

from pagemesh.gateway.transcoding import HttpRoute, http_routes
from tests.gateway.conftest import Gateway

METHODS = ("GET", "POST", "PUT", "PATCH", "DELETE")


@pytest.mark.parametrize("path", ["/v1/images", "/v1", "/healthz", "/v3/models", "/v1/models/"])
def test_an_unknown_route_is_404_and_named(gateway: Gateway, path: str) -> None:
    response = httpx.get(gateway.url + path + "?limit=1")
    assert response.status_code == 404
    assert response.json()["error"] == {
        "message": f"Unknown route: GET {path}",
        "type": "invalid_request_error",
        "param": None,
        "code": "unknown_url",
    }


def test_what_only_grpc_clients_call_is_no_route(gateway: Gateway) -> None:
    path = "/pagemesh.v1.OpenAI/ChatCompletions"
    response = httpx.post(gateway.url + path, json={"model": "size"})
    assert response.status_code == 404
    assert response.json()["error"]["message"] == f"Unknown route: POST {path}"


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
        assert response.headers["allow"] == ", ".join(route.methods)
        error = response.json()["error"]
        assert error["message"] == f"{method} is not allowed on {path}"
        assert error["type"] == "invalid_request_error"
