"""Clients that call a router itself, where the mesh speaks TLS."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from pagemesh.client import AsyncClient, Client
from pagemesh.config import MeshTlsConfig, ServerConfig
from pagemesh.errors import ConfigError, UnavailableError
from pagemesh.identity.roles import MeshRole
from pagemesh.rpc.server import GrpcServer
from pagemesh.v1 import inference_pb2, inference_pb2_grpc
from tests.support.mesh_certificates import MeshAuthority


class Models(inference_pb2_grpc.InferenceServicer):
    async def ListModels(  # noqa: N802
        self, request: Any, context: Any
    ) -> inference_pb2.ListModelsResponse:
        return inference_pb2.ListModelsResponse()


@pytest.fixture
def authority(tmp_path: Path) -> MeshAuthority:
    return MeshAuthority(tmp_path / "mesh")


@pytest.fixture
async def router(authority: MeshAuthority) -> AsyncIterator[str]:
    identity = authority.identity(MeshRole.ROUTER)
    server = GrpcServer(
        ServerConfig(grace_period=0.1), ["pagemesh.v1.Inference"], identity=identity
    )
    address = await server.start()
    server.add(inference_pb2_grpc.add_InferenceServicer_to_server, Models())  # type: ignore[abstract]
    await server.set_serving()
    yield address
    await server.close()


def models_of(address: str, tls: MeshTlsConfig | None) -> int:
    with Client(address, tls=tls) as client:
        return len(client.models(timeout=10))


async def test_a_certificate_opens_the_router(router: str, authority: MeshAuthority) -> None:
    tls = authority.issue("client", MeshRole.CLIENT)
    assert await asyncio.to_thread(models_of, router, tls) == 0
    async with AsyncClient(router, tls=tls) as client:
        assert await client.models(timeout=10) == []


async def test_without_one_there_is_no_connection(router: str, authority: MeshAuthority) -> None:
    with pytest.raises(UnavailableError):
        await asyncio.to_thread(models_of, router, None)


def test_a_certificate_for_something_else_is_refused_before_it_is_shown(
    authority: MeshAuthority,
) -> None:
    tls = authority.issue("probe", MeshRole.HEALTH)
    with pytest.raises(ConfigError, match=r"must be client\.pagemesh too"):
        Client("127.0.0.1:1", tls=tls)
