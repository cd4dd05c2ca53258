"""Envoy accepts the generated configuration, which follows the proto file and the settings."""

from __future__ import annotations

import base64
import re
from pathlib import Path
from typing import Any

import pytest
from google.protobuf import descriptor_pb2, descriptor_pool

from pagemesh.config import GatewayConfig
from pagemesh.errors import ConfigError
from pagemesh.gateway.bootstrap import bootstrap
from pagemesh.gateway.process import envoy_command
from pagemesh.gateway.transcoding import SERVICES, HttpRoute, encoded_descriptors, http_routes


def make_config(**settings: Any) -> GatewayConfig:
    return GatewayConfig(**{"routers": ("127.0.0.1:1", "router.example:50051"), **settings})


def clusters(configuration: dict[str, Any]) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = configuration["static_resources"]["clusters"]
    return found


def test_the_configuration_fits_into_one_argument(tmp_path: Path) -> None:
    # Linux takes at most 128 KiB in one argument.
    config = make_config(api_key_required=True, local_socket=str(tmp_path / "local.sock"))
    assert max(len(argument) for argument in envoy_command(config)) < 100_000


def test_every_rpc_of_the_annotated_services_is_a_route() -> None:
    routes = {route.path: route.methods for route in http_routes()}
    assert routes["/v1/chat/completions"] == ("POST",)
    assert routes["/v1/models/{model=**}"] == ("GET",)
    # Further paths of the same RPC.
    assert routes["/v1/rerank"] == routes["/rerank"] == routes["/v2/rerank"] == ("POST",)
    num_rpcs = sum(len(service.methods) for service in SERVICES)
    assert sum(len(methods) for methods in routes.values()) >= num_rpcs


@pytest.mark.parametrize(
    ("path", "matching", "others"),
    [
        ("/v1/models", None, []),
        ("/v1/m/{m=**}", ["/v1/m/a", "/v1/m/a/b", "/v1/m/a%2Fb"], ["/v1/m", "/v1/m/"]),
        ("/v1/r/{r}", ["/v1/r/a.b"], ["/v1/r/a/b", "/v1/r/", "/v1-r/a"]),
        ("/v1/r/{r}/cancel", ["/v1/r/a/cancel"], ["/v1/r/cancel", "/v1/r/a/b/cancel"]),
    ],
)
def test_variables_of_paths(path: str, matching: list[str] | None, others: list[str]) -> None:
    regex = HttpRoute(path, ("GET",)).regex
    assert (regex is None) == (matching is None)
    for text in matching or []:
        assert re.fullmatch(regex or "", text)
    for text in others:
        assert not re.fullmatch(regex or "", text)


def test_a_variable_that_is_not_understood_is_refused() -> None:
    with pytest.raises(ValueError, match="variable"):
        _ = HttpRoute("/v1/{name=projects/*}", ("GET",)).regex


def test_the_descriptors_are_complete_and_in_order() -> None:
    files = descriptor_pb2.FileDescriptorSet.FromString(base64.b64decode(encoded_descriptors()))
    pool = descriptor_pool.DescriptorPool()
    for file in files.file:
        pool.Add(file)
    for service in SERVICES:
        found = pool.FindServiceByName(service.full_name)
        assert sorted(found.methods_by_name) == sorted(service.methods_by_name)


def test_a_router_that_froze_is_given_up_within_five_seconds() -> None:
    (cluster,) = (c for c in clusters(bootstrap(make_config())) if "health_checks" in c)
    (options,) = cluster["typed_extension_protocol_options"].values()
    http2 = options["explicit_http_config"]["http2_protocol_options"]
    interval, timeout = (
        float(http2["connection_keepalive"][name].removesuffix("s"))
        for name in ("interval", "timeout")
    )
    # Envoy makes intervals up to 15 % longer.
    assert 1.15 * interval + timeout < 5.0


def test_without_an_admin_socket_there_is_no_admin_interface() -> None:
    assert "admin" not in bootstrap(make_config())


@pytest.mark.parametrize("router", ["localhost", ":80", "host:", "host:0", "host:70000", "host:x"])
def test_a_router_that_is_no_address_is_refused(router: str) -> None:
    with pytest.raises(ConfigError, match=f"--routers has '{router}'"):
        bootstrap(make_config(routers=(router,)))
