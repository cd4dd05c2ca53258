"""Every RPC of a router stands behind its gate, but those that say nothing that needs a key."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from pagemesh.config import TenantsConfig
from pagemesh.router.servicers.gate import OPEN_METHODS
from pagemesh.router.servicers.services import SERVICE_NAMES
from pagemesh.v1 import anthropic_pb2, console_pb2, inference_pb2, openai_pb2
from tests.contract.http_answers import pairs
from tests.contract.router_harness import Mesh, running_mesh
from tests.contract.tenant_keys import ACME, bearer


@pytest.fixture
async def mesh(keys: Path) -> AsyncIterator[Mesh]:
    async with running_mesh(tenants=TenantsConfig(api_key_file=str(keys))) as mesh:
        yield mesh


def every_method() -> list[str]:
    files = (anthropic_pb2, console_pb2, inference_pb2, openai_pb2)
    return [
        f"/{service.full_name}/{method.name}"
        for file in files
        for service in file.DESCRIPTOR.services_by_name.values()
        for method in service.methods
    ]


def test_the_methods_that_are_open_exist_but_for_the_page() -> None:
    assert {method.split("/")[1] for method in every_method()} == set(SERVICE_NAMES)
    assert OPEN_METHODS - set(every_method()) <= {"/pagemesh.v1.Console/Page"}


async def test_every_method_asks_for_a_key_but_those_that_say_nothing(mesh: Mesh) -> None:
    for method in every_method():
        rpc: Any = mesh.channel.unary_stream(method)
        call = rpc(b"", timeout=10)
        try:
            assert [answer async for answer in call]
            status = dict(await call.initial_metadata()).get("x-http-status")
        except grpc.aio.AioRpcError as error:
            status = error.code().name
        refused = "UNAUTHENTICATED" if ".Inference/" in method else "401"
        assert (status == refused) == (method not in OPEN_METHODS), (method, status)


async def test_reflection_needs_a_key_and_health_none(mesh: Mesh) -> None:
    health: Any = health_pb2_grpc.HealthStub(mesh.channel)
    served = await health.Check(health_pb2.HealthCheckRequest(), timeout=5)
    assert served.status == health_pb2.HealthCheckResponse.SERVING
    channel: Any = mesh.channel
    reflection: Any = reflection_pb2_grpc.ServerReflectionStub(channel)
    request = reflection_pb2.ServerReflectionRequest(list_services="")
    listed = reflection.ServerReflectionInfo(
        iter([request]), timeout=5, metadata=pairs(bearer(ACME))
    )
    async for response in listed:
        names = {service.name for service in response.list_services_response.service}
        assert set(SERVICE_NAMES) <= names
    with pytest.raises(grpc.aio.AioRpcError) as found:
        async for _ in reflection.ServerReflectionInfo(iter([request]), timeout=5):
            pass
    assert found.value.code() is grpc.StatusCode.UNAUTHENTICATED
