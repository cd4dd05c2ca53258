"""How tests talk to the parts of a mesh that speak TLS with each other."""

from __future__ import annotations

import ssl
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import grpc
import httpx
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from pagemesh.config import MeshTlsConfig
from pagemesh.identity.roles import MeshRole
from pagemesh.rpc.channels import channel_options
from pagemesh.rpc.identity import Identity
from pagemesh.telemetry.metrics import Metrics
from tests.mesh.harness import Mesh, option

ROLES = {
    "gateway": MeshRole.GATEWAY,
    "router": MeshRole.ROUTER,
    "kvstore": MeshRole.KVSTORE,
    "prefill-0": MeshRole.PREFILL,
    "decode-0": MeshRole.DECODE,
}


def files(mesh: Mesh, part: str) -> MeshTlsConfig:
    """The certificate that a part shows; the gateway's lies beside the router's."""
    router = option(mesh.parts()["router"], "--mesh-cert")
    assert router is not None
    folder = Path(router).parent
    return MeshTlsConfig.in_folder(folder, part)


def ports(mesh: Mesh, flag: str) -> dict[str, str]:
    """host:port of every part that has such a port."""
    found = {name: option(part, flag) for name, part in mesh.parts().items()}
    return {name: f"127.0.0.1:{port}" for name, port in found.items() if port is not None}


def shown_as(settings: MeshTlsConfig, role: MeshRole) -> Identity:
    identity = Identity.load(settings, role, Metrics())
    assert identity is not None
    return identity


@contextmanager
def channel_to(address: str, peer: MeshRole, identity: Identity | None) -> Iterator[grpc.Channel]:
    if identity is None:
        channel = grpc.insecure_channel(address, options=channel_options())
    else:
        channel = grpc.secure_channel(
            address, identity.channel_credentials(), options=channel_options(peer)
        )
    with channel:
        yield channel


def health(address: str, peer: MeshRole, identity: Identity | None) -> str:
    """SERVING, or the code with which the question failed."""
    with channel_to(address, peer, identity) as channel:
        # The library's stubs for type checkers know no methods.
        stub: Any = health_pb2_grpc.HealthStub(channel)
        try:
            answer = stub.Check(health_pb2.HealthCheckRequest(), timeout=5)
        except grpc.RpcError as error:
            assert isinstance(error, grpc.Call)
            return str(error.code().name)
        return str(health_pb2.HealthCheckResponse.ServingStatus.Name(answer.status))


def refusal_of(call: Callable[[], object]) -> str:
    with pytest.raises(grpc.RpcError) as raised:
        call()
    error = raised.value
    assert isinstance(error, grpc.Call)
    return f"{error.code().name}: {error.details()}"


def metrics_page(address: str, settings: MeshTlsConfig) -> str:
    context = ssl.create_default_context(cafile=settings.mesh_ca)
    context.check_hostname = False
    context.load_cert_chain(str(settings.mesh_cert), settings.mesh_key)
    return httpx.get(f"https://{address}/metrics", verify=context, timeout=5).text
