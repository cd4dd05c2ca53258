"""Envoy accepts the generated configuration, which follows the proto file and the settings."""

from __future__ import annotations

import base64
import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
from google.protobuf import descriptor_pb2, descriptor_pool

from pagemesh.config import GatewayConfig
from pagemesh.errors import ConfigError
from pagemesh.gateway.bootstrap import bootstrap
from pagemesh.gateway.process import envoy_command
from pagemesh.gateway.transcoding import encoded_descriptors, http_routes


def make_config(**settings: Any) -> GatewayConfig:
    return GatewayConfig(**{"routers": ("127.0.0.1:1", "router.example:50051"), **settings})


def clusters(configuration: dict[str, Any]) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = configuration["static_resources"]["clusters"]
    return found


def test_envoy_accepts_every_setting_without_a_warning(tmp_path: Path) -> None:
    config = make_config(
        host="::1",
        port=18080,
        admin_socket=str(tmp_path / "envoy.sock"),
        access_log=str(tmp_path / "access.jsonl"),
        concurrency=2,
    )
    checked = subprocess.run(
        [*envoy_command(config), "--mode", "validate"],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert (checked.returncode, checked.stderr) == (0, "")


def test_the_configuration_fits_into_one_argument() -> None:
    # Linux takes at most 128 KiB in one argument.
    assert len(json.dumps(bootstrap(make_config()))) < 100_000


def test_routes_are_those_of_the_proto_file() -> None:
    assert [tuple(route) for route in http_routes()] == [
        ("POST", "/v1/chat/completions", False),
        ("POST", "/v1/completions", False),
        ("POST", "/v1/embeddings", False),
        ("POST", "/v1/score", False),
        ("POST", "/score", False),
        ("POST", "/v1/rerank", False),
        ("POST", "/rerank", False),
        ("POST", "/v2/rerank", False),
        ("POST", "/tokenize", False),
        ("POST", "/detokenize", False),
        ("GET", "/v1/models", False),
        ("POST", "/v1/responses", False),
        ("GET", "/health", False),
        ("GET", "/ready", False),
        ("GET", "/version", False),
        ("GET", "/metrics", False),
        ("POST", "/v1/messages", False),
        ("POST", "/v1/messages/count_tokens", False),
        ("GET", "/v1/models/", True),
        ("GET", "/v1/responses/", True),
        ("DELETE", "/v1/responses/", True),
        ("POST", "/v1/responses/", True),
    ]


def test_the_descriptors_are_complete_and_in_order() -> None:
    files = descriptor_pb2.FileDescriptorSet.FromString(base64.b64decode(encoded_descriptors()))
    pool = descriptor_pool.DescriptorPool()
    for file in files.file:
        pool.Add(file)
    assert pool.FindServiceByName("pagemesh.v1.Console").methods_by_name["Health"]


def test_a_router_that_froze_is_given_up_within_two_seconds() -> None:
    (cluster,) = (c for c in clusters(bootstrap(make_config())) if "health_checks" in c)
    (options,) = cluster["typed_extension_protocol_options"].values()
    http2 = options["explicit_http_config"]["http2_protocol_options"]
    interval, timeout = (
        float(http2["connection_keepalive"][name].removesuffix("s"))
        for name in ("interval", "timeout")
    )
    # Envoy makes intervals up to 15 % longer.
    assert 1.15 * interval + timeout < 2.0


def test_without_an_admin_socket_there_is_no_admin_interface() -> None:
    assert "admin" not in bootstrap(make_config())


@pytest.mark.parametrize("router", ["localhost", ":80", "host:", "host:0", "host:70000", "host:x"])
def test_a_router_that_is_no_address_is_refused(router: str) -> None:
    with pytest.raises(ConfigError, match=f"--routers has '{router}'"):
        bootstrap(make_config(routers=(router,)))
