"""A server with an identity: who gets in, and what each may call."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from pagemesh.config import ServerConfig
from pagemesh.errors import PermissionDeniedError
from pagemesh.identity.roles import MeshRole
from pagemesh.rpc.channels import open_bulk_channel, open_channel
from pagemesh.rpc.identity import Identity
from pagemesh.rpc.server import GrpcServer
from pagemesh.rpc.status import from_rpc_error
from pagemesh.telemetry.metrics import Metrics
from pagemesh.v1 import kvstore_pb2, kvstore_pb2_grpc
from tests.support.mesh_certificates import MeshAuthority, trust

SERVICE = "pagemesh.v1.KvStore"


class Lookups(kvstore_pb2_grpc.KvStoreServicer):
    async def Lookup(self, request: Any, context: Any) -> kvstore_pb2.LookupResponse:  # noqa: N802
        return kvstore_pb2.LookupResponse()


@pytest.fixture
def authority(tmp_path: Path) -> MeshAuthority:
    return MeshAuthority(tmp_path / "mesh")


@asynccontextmanager
async def serving(identity: Identity) -> AsyncIterator[str]:
    server = GrpcServer(ServerConfig(grace_period=0.1), [SERVICE], identity=identity)
    address = await server.start()
    server.add(kvstore_pb2_grpc.add_KvStoreServicer_to_server, Lookups())  # type: ignore[abstract]
    await server.set_serving()
    try:
        yield address
    finally:
        await server.close()


async def lookup(channel: grpc.aio.Channel) -> str:
    """OK, or why not."""
    stub = kvstore_pb2_grpc.KvStoreStub(channel)
    try:
        await stub.Lookup(kvstore_pb2.LookupRequest(), timeout=5)
    except grpc.aio.AioRpcError as error:
        return f"{error.code().name}: {error.details()}"
    return "OK"


async def lookup_as(address: str, identity: Identity | None, peer: MeshRole) -> str:
    async with open_channel(address, peer, identity) as channel:
        return await lookup(channel)


async def test_a_router_is_let_in_and_a_worker_is_told_what_it_may_not_do(
    authority: MeshAuthority,
) -> None:
    metrics = Metrics()
    router = authority.identity(MeshRole.ROUTER)
    worker = authority.identity(MeshRole.DECODE, MeshRole.WORKER)
    async with serving(authority.identity(MeshRole.KVSTORE, metrics=metrics)) as address:
        assert await lookup_as(address, router, MeshRole.KVSTORE) == "OK"
        assert await lookup_as(address, worker, MeshRole.KVSTORE) == (
            "PERMISSION_DENIED: decode.pagemesh, worker.pagemesh may not call /pagemesh.v1.KvStore/Lookup"
        )
    labels = {"method": "/pagemesh.v1.KvStore/Lookup", "roles": "decode,worker"}
    assert metrics.registry.get_sample_value("pagemesh:calls_refused_total", labels) == 1


async def test_the_refusal_is_an_error_of_its_own(authority: MeshAuthority) -> None:
    client = authority.identity(MeshRole.HEALTH)
    async with (
        serving(authority.identity(MeshRole.KVSTORE)) as address,
        open_channel(address, MeshRole.KVSTORE, client) as channel,
    ):
        stub = kvstore_pb2_grpc.KvStoreStub(channel)
        with pytest.raises(grpc.aio.AioRpcError) as raised:
            await stub.Lookup(kvstore_pb2.LookupRequest(), timeout=5)
        assert isinstance(from_rpc_error(raised.value), PermissionDeniedError)
        health: Any = health_pb2_grpc.HealthStub(channel)
        answer = await health.Check(health_pb2.HealthCheckRequest(), timeout=5)
        assert answer.status == health_pb2.HealthCheckResponse.SERVING


async def test_strangers_get_no_connection(authority: MeshAuthority, tmp_path: Path) -> None:
    stranger = MeshAuthority(tmp_path / "other").identity(MeshRole.ROUTER)
    forged = MeshAuthority(tmp_path / "another").issue("forged", MeshRole.ROUTER)
    trust(forged, authority)
    forger = Identity.load(forged, "router", Metrics())
    async with serving(authority.identity(MeshRole.KVSTORE)) as address:
        for identity in (None, stranger, forger):
            outcome = await lookup_as(address, identity, MeshRole.KVSTORE)
            assert outcome.startswith("UNAVAILABLE: "), outcome


async def test_a_server_that_is_something_else_is_not_called(authority: MeshAuthority) -> None:
    """A worker that pretends to be the kvstore, say."""
    router = authority.identity(MeshRole.ROUTER)
    async with serving(authority.identity(MeshRole.DECODE, MeshRole.WORKER)) as address:
        outcome = await lookup_as(address, router, MeshRole.KVSTORE)
        assert "Hostname Verification Check failed" in outcome


async def test_an_expired_certificate_opens_nothing(authority: MeshAuthority) -> None:
    soon = timedelta(seconds=2)
    late = Identity.load(
        authority.issue("late", MeshRole.ROUTER, lifetime=soon), "router", Metrics()
    )
    server = Identity.load(
        authority.issue("kv", MeshRole.KVSTORE, lifetime=soon), "kvstore", Metrics()
    )
    assert server is not None
    await asyncio.sleep(soon.total_seconds())
    async with serving(authority.identity(MeshRole.KVSTORE)) as address:
        outcome = await lookup_as(address, late, MeshRole.KVSTORE)
        assert outcome.startswith("UNAVAILABLE: ")
    async with serving(server) as address:
        outcome = await lookup_as(address, authority.identity(MeshRole.ROUTER), MeshRole.KVSTORE)
        assert "certificate has expired" in outcome


async def test_new_connections_use_new_certificates_and_old_ones_live_on(
    authority: MeshAuthority, tmp_path: Path
) -> None:
    kvstore = authority.identity(MeshRole.KVSTORE)
    router = authority.identity(MeshRole.ROUTER)
    successor = MeshAuthority(tmp_path / "mesh2")
    async with (
        serving(kvstore) as address,
        open_channel(address, MeshRole.KVSTORE, router) as old,
    ):
        assert await lookup(old) == "OK"
        # As authorities are changed: all trust both, then all show the new one's, then nobody trusts the old.
        for name in ("kvstore", "router"):
            trust(authority.issue(name, MeshRole(name)), authority, successor)
        assert await lookup_as(address, router, MeshRole.KVSTORE) == "OK"
        former = authority.identity(MeshRole.GATEWAY, MeshRole.ROUTER)
        for name in ("kvstore", "router"):
            successor.issue(name, MeshRole(name), in_place_of=authority)
        assert await lookup_as(address, router, MeshRole.KVSTORE) == "OK"
        assert (await lookup_as(address, former, MeshRole.KVSTORE)).startswith("UNAVAILABLE")
        assert await lookup(old) == "OK"


async def test_blocking_channels_speak_tls_too(authority: MeshAuthority) -> None:
    router = authority.identity(MeshRole.ROUTER)
    async with serving(authority.identity(MeshRole.KVSTORE)) as address:

        def call() -> None:
            with open_bulk_channel(address, MeshRole.KVSTORE, router) as channel:
                publish: Any = channel.unary_stream("/pagemesh.v1.KvStore/Publish")
                with pytest.raises(grpc.RpcError) as raised:
                    list(publish(b"", timeout=5))
            error: Any = raised.value
            assert error.code() is grpc.StatusCode.PERMISSION_DENIED

        await asyncio.to_thread(call)
