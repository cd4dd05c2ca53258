"""What clients see while no router serves."""

from __future__ import annotations

import json
import subprocess
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Literal

import grpc
import httpx
import pytest

from pagemesh.config import GatewayConfig
from pagemesh.gateway.process import envoy_command
from pagemesh.v1 import inference_pb2, inference_pb2_grpc
from tests.gateway.conftest import Gateway, running_gateway, wait_for_status
from tests.gateway.freezable_port import FreezablePort
from tests.gateway.stand_in_router import StandInRouter
from tests.support.ports import free_port

pytestmark = pytest.mark.costly

EJECTIONS = "outlier_detection.ejections_enforced_consecutive_local_origin_failure"
UNAVAILABLE = {
    "message": "No router can serve the request right now.",
    "type": "server_error",
    "param": None,
    "code": "unavailable",
}


def test_without_a_router_clients_get_503_at_once_and_service_returns_with_it(
    own_gateway: Gateway,
) -> None:
    own_gateway.router.stop()
    wait_for_status(f"{own_gateway.url}/health", 503)
    started = time.monotonic()
    refused = httpx.post(f"{own_gateway.url}/v1/chat/completions", json={"model": "size"})
    assert time.monotonic() - started < 1.0
    assert refused.status_code == 503
    assert refused.headers["retry-after"] == "1"
    assert refused.json()["error"] == UNAVAILABLE
    with grpc.insecure_channel(own_gateway.address) as channel:
        stub = inference_pb2_grpc.InferenceStub(channel)
        with pytest.raises(grpc.RpcError) as caught:
            stub.Tokenize(inference_pb2.TokenizeRequest(text="x"), timeout=5)
    assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
    # Envoy's own words, not the JSON for clients of HTTP.
    assert (caught.value.details() or "")[:1].isalpha()

    router = StandInRouter(int(own_gateway.router.address.rpartition(":")[2]))
    router.set_serving(True)
    try:
        wait_for_status(f"{own_gateway.url}/health", 200)
    finally:
        router.stop()


@pytest.mark.parametrize("status", [grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED])
def test_what_a_router_that_stops_does_not_take_up_goes_to_another(
    tmp_path: Path, status: grpc.StatusCode
) -> None:
    other = StandInRouter(free_port())
    other.set_serving(True)
    # CANCELLED is what gRPC's servers say of calls that come in the moment in which they close.
    other.openai.refusal = status
    try:
        with running_gateway(tmp_path, other_routers=(other.address,)) as running:
            url = f"{running.url}/v1/chat/completions"
            deadline = time.monotonic() + 20
            while other.openai.metadata.empty():
                assert time.monotonic() < deadline, "the other one was never asked"
                assert httpx.post(url, json={"model": "size"}).status_code == 200
    finally:
        other.stop()


def test_a_router_that_is_not_serving_gets_no_requests(own_gateway: Gateway) -> None:
    own_gateway.router.set_serving(False)
    wait_for_status(f"{own_gateway.url}/health", 503)
    own_gateway.router.set_serving(True)
    wait_for_status(f"{own_gateway.url}/health", 200)


@pytest.mark.parametrize("log_format", ["json", "console"])
def test_a_second_gateway_on_the_same_port_says_so_and_ends(
    own_gateway: Gateway, log_format: Literal["json", "console"]
) -> None:
    settings = GatewayConfig(
        routers=(own_gateway.router.address,), port=own_gateway.config.port, log_format=log_format
    )
    second = subprocess.run(
        envoy_command(settings), capture_output=True, text=True, check=False, timeout=20
    )
    assert second.returncode == 1
    said = second.stderr.splitlines()[0]
    assert "Address already in use" in said
    if log_format == "json":
        line = json.loads(said)
        assert (line["level"], line["service"]) == ("error", "gateway")
        assert datetime.fromisoformat(line["timestamp"]).tzinfo is not None
    else:
        assert said.startswith("[")


def test_a_request_whose_router_is_frozen_is_answered_by_another_before_its_answer_begins(
    tmp_path: Path,
) -> None:
    other = StandInRouter(free_port())
    other.set_serving(True)
    port = FreezablePort(other.address)
    try:
        with running_gateway(tmp_path, other_routers=(port.address,)) as running:
            url = f"{running.url}/v1/chat/completions"
            ask = partial(httpx.post, url, json={"model": "size"}, timeout=30)
            deadline = time.monotonic() + 20
            while other.openai.metadata.empty():
                assert time.monotonic() < deadline, "the other one was never asked"
                assert ask().status_code == 200
            port.freeze()
            with ThreadPoolExecutor(16) as pool:
                statuses = [each.status_code for each in pool.map(lambda _: ask(), range(64))]
            assert statuses == [200] * 64
            # Out of the rotation since the first of them was lost, and not only since its health checks failed.
            transport = httpx.HTTPTransport(uds=str(running.admin_socket))
            with httpx.Client(transport=transport, base_url="http://envoy") as admin:
                stats = admin.get("/stats", params={"filter": EJECTIONS}).text
            assert int(stats.rpartition(":")[2]) >= 1
    finally:
        port.close()
        other.stop()
