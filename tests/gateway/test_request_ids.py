"""Every request has an id: the client's, or one made here; in every answer and in the access log."""

from __future__ import annotations

import json
import uuid
from pathlib import Path

import httpx
import pytest

from tests.gateway.conftest import Gateway, running_gateway


@pytest.mark.parametrize(
    "request_id", ["request-7", "0af76519-16cd-13dd-8448-eb211c80319c", "a" * 200, "%22{};"]
)
def test_the_clients_id_is_kept_as_it_is(gateway: Gateway, request_id: str) -> None:
    seen = gateway.router.openai.metadata
    while not seen.empty():
        seen.get()
    headers = {"x-request-id": request_id}
    url = f"{gateway.url}/v1/chat/completions"
    response = httpx.post(url, json={"model": "size"}, headers=headers)
    assert response.headers["x-request-id"] == request_id
    assert seen.get(timeout=5)["x-request-id"] == request_id


def test_a_request_without_an_id_gets_one(gateway: Gateway) -> None:
    ids = {httpx.get(f"{gateway.url}/v1/models").headers["x-request-id"] for _ in range(2)}
    assert len({uuid.UUID(request_id) for request_id in ids}) == 2


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/unknown", 404),
        ("GET", "/v1/chat/completions", 405),
        ("POST", "/v1/chat/completions", 413),
        ("POST", "/v1/responses", 501),
    ],
)
def test_errors_have_the_id_too(gateway: Gateway, method: str, path: str, status: int) -> None:
    headers = {"x-request-id": f"failing-{status}"}
    content = b" " * (3 << 20) if status == 413 else b""
    response = httpx.request(method, gateway.url + path, headers=headers, content=content)
    assert response.status_code == status
    assert response.headers["x-request-id"] == headers["x-request-id"]
    assert gateway.log_entry(headers["x-request-id"])["status"] == status
    assert uuid.UUID(httpx.get(f"{gateway.url}/unknown").headers["x-request-id"])


def test_the_log_says_who_asked_what_and_how_it_went(gateway: Gateway) -> None:
    request_id = str(uuid.uuid4())
    headers = {
        "x-request-id": request_id,
        "authorization": "Bearer secret",
        "user-agent": "tester/1",
        "x-pagemesh-tenant": "forged",
    }
    url = f"{gateway.url}/v1/chat/completions?key=secret"
    response = httpx.post(url, json={"model": "tenant:acme"}, headers=headers)
    assert "x-pagemesh-tenant" not in response.headers
    entry = gateway.log_entry(request_id)
    expected = {
        "tenant": "acme",
        "client": "127.0.0.1",
        "user_agent": "tester/1",
        "protocol": "HTTP/1.1",
        "tls": None,
        "method": "POST",
        "path": "/v1/chat/completions",
        "status": 200,
        "flags": "-",
        "bytes_in": len(json.dumps({"model": "tenant:acme"}, separators=(",", ":"))),
        "bytes_out": response.num_bytes_downloaded,
        "upstream": gateway.router.address,
        "attempts": 1,
    }
    assert {name: entry[name] for name in expected} == expected
    assert "secret" not in json.dumps(entry)
    assert entry["duration_ms"] >= entry["first_byte_ms"] >= 0


def test_the_log_may_go_to_the_standard_output(tmp_path: Path) -> None:
    with running_gateway(tmp_path, access_log="-") as running:
        httpx.get(f"{running.url}/v1/models", headers={"x-request-id": "printed"})
        entry = running.log_entry("printed")
    assert (entry["path"], entry["status"]) == ("/v1/models", 200)
