"""What the gateway shows its routers, and whom it takes for one."""

from __future__ import annotations

from pathlib import Path

import pytest

from pagemesh.config import GatewayConfig
from pagemesh.gateway.bootstrap import bootstrap
from pagemesh.identity.roles import MeshRole
from tests.gateway.conftest import running_gateway, wait_for_status
from tests.gateway.stand_in_router import StandInRouter
from tests.support.mesh_certificates import MeshAuthority


@pytest.fixture
def authority(tmp_path: Path) -> MeshAuthority:
    return MeshAuthority(tmp_path / "mesh")


def test_a_router_is_called_by_tls(authority: MeshAuthority, tmp_path: Path) -> None:
    router, gateway = authority.identity(MeshRole.ROUTER), authority.issue("gw", MeshRole.GATEWAY)
    with running_gateway(tmp_path, router, mesh=gateway) as running:
        wait_for_status(f"{running.url}/health", 200)


def test_who_is_no_router_is_not_called(authority: MeshAuthority, tmp_path: Path) -> None:
    """A worker, say, that listens at a router's address; until one is there."""
    worker, gateway = (
        authority.identity(MeshRole.DECODE, MeshRole.WORKER),
        authority.issue("gw", MeshRole.GATEWAY),
    )
    with running_gateway(tmp_path, worker, 503, mesh=gateway) as running:
        wait_for_status(f"{running.url}/health", 503)
        running.router.stop()
        port = int(running.router.address.rpartition(":")[2])
        router = StandInRouter(port, authority.identity(MeshRole.ROUTER))
        router.set_serving(True)
        try:
            wait_for_status(f"{running.url}/health", 200)
        finally:
            router.stop()


def test_a_router_refuses_a_gateway_without_a_certificate(
    authority: MeshAuthority, tmp_path: Path
) -> None:
    with running_gateway(tmp_path, authority.identity(MeshRole.ROUTER), 503) as running:
        wait_for_status(f"{running.url}/health", 503)


def test_certificates_that_are_replaced_are_shown_and_asked_for(
    authority: MeshAuthority, tmp_path: Path
) -> None:
    """By those of another authority: a router that has them is called only with them."""
    successor = MeshAuthority(tmp_path / "successor")
    gateway = authority.issue("gw", MeshRole.GATEWAY)
    with running_gateway(tmp_path, authority.identity(MeshRole.ROUTER), mesh=gateway) as running:
        wait_for_status(f"{running.url}/health", 200)
        running.router.stop()
        port = int(running.router.address.rpartition(":")[2])
        renewed = StandInRouter(port, successor.identity(MeshRole.ROUTER))
        renewed.set_serving(True)
        try:
            wait_for_status(f"{running.url}/health", 503)
            successor.issue("gw", MeshRole.GATEWAY, in_place_of=authority)
            wait_for_status(f"{running.url}/health", 200)
            assert running.process.poll() is None
        finally:
            renewed.stop()


def test_a_printed_configuration_names_the_files_themselves(authority: MeshAuthority) -> None:
    mesh = authority.issue("gw", MeshRole.GATEWAY)
    printed = bootstrap(GatewayConfig(routers=("a:1",), mesh=mesh), alone=True)
    (cluster,) = printed["static_resources"]["clusters"]
    context = cluster["transport_socket"]["typed_config"]["common_tls_context"]
    assert context["tls_certificates"] == [
        {
            "certificate_chain": {"filename": mesh.mesh_cert},
            "private_key": {"filename": mesh.mesh_key},
        }
    ]
    assert context["validation_context"]["trusted_ca"] == {"filename": mesh.mesh_ca}
