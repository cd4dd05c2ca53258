"""`pagemesh health HOST:PORT`: whether a process serves, as an exit code; for probes of containers."""

from __future__ import annotations

import http.client
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from pagemesh.cli.settings import HealthConfig
from pagemesh.errors import ConfigError, UnavailableError
from pagemesh.identity.certificates import roles_named_in
from pagemesh.identity.roles import MeshRole
from pagemesh.local.local_http import LocalConnection
from pagemesh.rpc.channels import open_blocking_channel
from pagemesh.rpc.identity import Identity
from pagemesh.telemetry.metrics import Metrics

_SERVERS: Final = (MeshRole.ROUTER, MeshRole.WORKER, MeshRole.KVSTORE)


def run(config: HealthConfig) -> None:
    """Print that it serves, or raise UnavailableError. Raises ConfigError for certificates that cannot be used."""
    if config.address.startswith(("http://", "unix:")):
        _ask_gateway(config)
    else:
        _ask_process(config)
    print(f"{config.address} serves")


def _ask_gateway(config: HealthConfig) -> None:
    connection = _connection(config)
    try:
        connection.request("GET", "/health")
        answer = connection.getresponse()
        text = answer.read().decode(errors="replace")
    except (OSError, http.client.HTTPException) as error:
        raise UnavailableError(f"{config.address} does not answer: {error}") from error
    finally:
        connection.close()
    if answer.status != http.client.OK:
        raise UnavailableError(f"{config.address} answers {answer.status}: {text}")


def _connection(config: HealthConfig) -> http.client.HTTPConnection:
    if config.address.startswith("unix:"):
        return LocalConnection(Path(config.address.removeprefix("unix:")), timeout=config.timeout)
    try:
        parts = urlsplit(config.address)
        return http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=config.timeout)
    except (ValueError, http.client.InvalidURL):
        raise ConfigError(
            f"--address is {config.address!r}, but must be http://host:port"
        ) from None


def _ask_process(config: HealthConfig) -> None:
    identity, peer = _identity(config)
    with open_blocking_channel(config.address, peer, identity) as channel:
        # The library's stubs for type checkers know no methods.
        stub: Any = health_pb2_grpc.HealthStub(channel)
        try:
            answer = stub.Check(health_pb2.HealthCheckRequest(), timeout=config.timeout)
        except grpc.RpcError as error:
            failed: Any = error
            raise UnavailableError(
                f"{config.address} does not answer: {failed.details()}"
            ) from error
    if answer.status != health_pb2.HealthCheckResponse.SERVING:
        name = health_pb2.HealthCheckResponse.ServingStatus.Name(answer.status)
        raise UnavailableError(f"{config.address} says {name}")


def _identity(config: HealthConfig) -> tuple[Identity | None, MeshRole | None]:
    """What is shown, and who must be there."""
    if not config.mesh.is_on:
        return None, None
    own = roles_named_in(config.mesh)
    peer = MeshRole(config.role) if config.role else next((r for r in _SERVERS if r in own), None)
    if peer is None:
        raise ConfigError(
            f"--role is unset, but must say who is asked: --mesh-cert is that of a {', '.join(sorted(own)) or 'stranger'}"
        )
    shown = MeshRole.HEALTH if MeshRole.HEALTH in own else peer
    return Identity.load(config.mesh, shown, Metrics()), peer
