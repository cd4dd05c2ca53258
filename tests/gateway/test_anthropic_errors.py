"""Clients of Anthropic's API read Anthropic's error object, also from the gateway itself."""

from __future__ import annotations

import httpx
import pytest

from tests.gateway.conftest import Gateway, running_gateway, wait_for_status

PATH = "/v1/messages"


@pytest.mark.parametrize(
    ("method", "path", "content", "status", "kind"),
    [
        ("GET", PATH, b"", 405, "invalid_request_error"),
        ("POST", f"{PATH}/unknown", b"", 404, "not_found_error"),
        ("POST", PATH, b" " * (3 << 20), 413, "request_too_large"),
        # The stand-in router has no such RPC.
        ("POST", PATH, b"{}", 501, "api_error"),
    ],
)
def test_the_gateways_own_errors(
    gateway: Gateway, method: str, path: str, content: bytes, status: int, kind: str
) -> None:
    headers = {"x-request-id": "request-7"}
    response = httpx.request(method, gateway.url + path, content=content, headers=headers)
    assert response.status_code == status
    body = response.json()
    assert (body["type"], body["error"]["type"]) == ("error", kind)
    assert body["error"]["message"]
    assert body["request_id"] == "request-7"


def test_no_router_and_no_key(tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = tmp_path_factory.mktemp("locked")
    with running_gateway(folder, api_key_required=True) as locked:
        refused = httpx.post(locked.url + PATH, json={})
        assert refused.status_code == 401
        assert refused.json()["error"]["type"] == "authentication_error"
        locked.router.set_serving(False)
        wait_for_status(f"{locked.url}/health", 503)
        response = httpx.post(locked.url + PATH, json={}, headers={"x-api-key": "k"})
        assert response.status_code == 503
        assert response.headers["retry-after"] == "1"
        assert response.json()["error"] == {
            "type": "api_error",
            "message": "No router can serve the request right now.",
        }
