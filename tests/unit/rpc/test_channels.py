"""What every channel is opened with: the service config, and how soon a silent peer is noticed."""

from __future__ import annotations

import asyncio
import json
import socket
import time
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path

import grpc
import pytest

from pagemesh.rpc.channels import channel_options, open_channel, service_config
from pagemesh.rpc.server import SERVER_OPTIONS
from pagemesh.v1 import kvstore_pb2, kvstore_pb2_grpc

ROOT = Path(__file__).resolve().parents[3]
METHODS = [name for entry in json.loads(service_config())["methodConfig"] for name in entry["name"]]
RETRYABLE = {
    ("pagemesh.v1.KvStore", "Register"),
    ("pagemesh.v1.KvStore", "Snapshot"),
    ("pagemesh.v1.Inference", "Embed"),
    ("pagemesh.v1.Inference", "Tokenize"),
    ("pagemesh.v1.Inference", "Detokenize"),
    ("pagemesh.v1.Inference", "ListModels"),
}


def test_the_packaged_copy_is_the_one_beside_the_protos() -> None:
    source = ROOT / "protos/pagemesh/v1/service_config.json"
    assert service_config() == source.read_text("utf-8")


@pytest.mark.parametrize("options", [channel_options(), SERVER_OPTIONS], ids=["channel", "server"])
def test_a_silent_peer_is_given_up_within_five_seconds(
    options: Sequence[tuple[str, int | str]],
) -> None:
    number = {name: int(value) for name, value in options if name != "grpc.service_config"}
    # gRPC asks at most once a second, however soon it is told to: a peer may have answered, and then frozen.
    asked_ms = max(number["grpc.keepalive_time_ms"], 1_000)
    answered_ms = max(number["grpc.keepalive_timeout_ms"], number["grpc.http2.ping_timeout_ms"])
    assert asked_ms + answered_ms == 4_000
    assert number["grpc.keepalive_permit_without_calls"] == 1
    assert number["grpc.http2.max_pings_without_data"] == 0


async def test_a_peer_that_is_slow_to_take_a_connection_is_not_a_lost_one() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        # The kernel takes the connection, and nobody says anything.
        address = f"127.0.0.1:{server.getsockname()[1]}"
        began_at = time.monotonic()
        async with open_channel(address) as channel, asyncio.timeout(20):
            stub: kvstore_pb2_grpc.KvStoreAsyncStub = kvstore_pb2_grpc.KvStoreStub(channel)
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await stub.Lookup(kvstore_pb2.LookupRequest())
    assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
    # As long as a ping of an open connection may go unanswered.
    assert 2.5 < time.monotonic() - began_at < 10.0


@pytest.mark.parametrize("name", METHODS, ids=lambda name: "/".join(name.values()))
def test_every_named_method_exists(name: dict[str, str]) -> None:
    package, _, service = name["service"].rpartition(".")
    module = {"KvTransfer": "kv_transfer"}.get(service, service.lower())
    descriptor = import_module(f"{package}.{module}_pb2").DESCRIPTOR.services_by_name[service]
    assert "method" not in name or name["method"] in descriptor.methods_by_name


def test_only_what_may_run_twice_is_retried_and_only_when_unavailable() -> None:
    retried = set()
    for entry in json.loads(service_config())["methodConfig"]:
        if "retryPolicy" in entry:
            assert entry["retryPolicy"]["retryableStatusCodes"] == ["UNAVAILABLE"]
            retried |= {(name["service"], name["method"]) for name in entry["name"]}
    assert retried == RETRYABLE
