"""Web pages of other origins: asked for beforehand, and answered with what lets a browser read."""

from __future__ import annotations

from collections.abc import Iterator

import httpx
import pytest

from pagemesh.config import CorsConfig
from tests.gateway.conftest import Gateway, running_gateway

PAGE = "https://chat.example"
PREFLIGHT = {
    "origin": PAGE,
    "access-control-request-method": "POST",
    "access-control-request-headers": "authorization,content-type",
}


@pytest.fixture(scope="module")
def chosen(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    """One page may call, with a key, and nobody without one."""
    cors = CorsConfig((f'["{PAGE}"]',), ("POST",), ("authorization",), allow_credentials=True)
    folder = tmp_path_factory.mktemp("chosen")
    with running_gateway(folder, cors=cors, api_key_required=True) as running:
        yield running


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/models/m", "/unknown"])
def test_by_default_every_page_may_do_everything(gateway: Gateway, path: str) -> None:
    asked = httpx.options(gateway.url + path, headers=PREFLIGHT)
    assert asked.status_code == 200
    assert asked.headers["access-control-allow-origin"] == PAGE
    assert asked.headers["access-control-allow-methods"] == "POST"
    assert asked.headers["access-control-allow-headers"] == "authorization,content-type"
    assert asked.headers["access-control-max-age"] == "600"
    assert "access-control-allow-credentials" not in asked.headers


def test_answers_can_be_read_and_so_can_some_headers(gateway: Gateway) -> None:
    response = httpx.get(f"{gateway.url}/v1/models", headers={"origin": PAGE})
    assert response.headers["access-control-allow-origin"] == PAGE
    exposed = response.headers["access-control-expose-headers"].split(", ")
    assert exposed[:3] == ["x-request-id", "retry-after", "x-pagemesh-route"]
    assert "x-ratelimit-remaining-tokens" in exposed
    assert "origin" in response.headers["vary"].lower()


def test_what_is_no_page_gets_no_such_headers(gateway: Gateway) -> None:
    response = httpx.get(f"{gateway.url}/v1/models")
    assert not [name for name in response.headers if name.startswith("access-control")]


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [("GET", "/unknown", 404), ("GET", "/v1/chat/completions", 405)],
)
def test_the_gateways_own_errors_can_be_read(
    gateway: Gateway, method: str, path: str, status: int
) -> None:
    response = httpx.request(method, gateway.url + path, headers={"origin": PAGE})
    assert response.status_code == status
    assert response.headers["access-control-allow-origin"] == PAGE


def test_a_preflight_needs_no_key(chosen: Gateway) -> None:
    asked = httpx.options(f"{chosen.url}/v1/chat/completions", headers=PREFLIGHT)
    assert asked.status_code == 200
    assert asked.headers["access-control-allow-origin"] == PAGE
    assert asked.headers["access-control-allow-methods"] == "POST"
    assert asked.headers["access-control-allow-headers"] == "authorization"
    assert asked.headers["access-control-allow-credentials"] == "true"


def test_a_page_can_read_that_a_key_is_missing(chosen: Gateway) -> None:
    refused = httpx.get(f"{chosen.url}/v1/models", headers={"origin": PAGE})
    assert refused.status_code == 401
    assert refused.headers["access-control-allow-origin"] == PAGE


def test_other_pages_are_told_nothing(chosen: Gateway) -> None:
    other = {**PREFLIGHT, "origin": "https://evil.example"}
    for response in (
        httpx.options(f"{chosen.url}/v1/chat/completions", headers=other),
        httpx.get(f"{chosen.url}/health", headers=other),
        httpx.get(f"{chosen.url}/v1/models", headers=other),
    ):
        assert "access-control-allow-origin" not in response.headers
