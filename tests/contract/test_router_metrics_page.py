"""The page of metrics that clients get: of all routers and workers, the same whichever router answers."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import grpc
import pytest

from pagemesh.config import RouterConfig, ServerConfig, TenantsConfig
from pagemesh.router.service import RouterProcess
from pagemesh.rpc.channels import open_channel
from pagemesh.v1 import console_pb2, console_pb2_grpc, process_pb2, process_pb2_grpc
from tests.contract.http_answers import Answer, pairs, read
from tests.contract.router_harness import MODEL, Mesh, running_mesh
from tests.contract.tenant_keys import ACME, BODY, WRONG, bearer
from tests.support.metrics import metric
from tests.support.ports import free_port

TOKENS = "vllm:generation_tokens_total"


@pytest.fixture
async def mesh(keys: Path) -> AsyncIterator[Mesh]:
    async with running_mesh(tenants=TenantsConfig(api_key_file=str(keys))) as mesh:
        yield mesh


@asynccontextmanager
async def router(mesh: Mesh, port: int, tenants: TenantsConfig) -> AsyncIterator[str]:
    """One more router of the mesh."""
    server = ServerConfig(port=port, grace_period=0.2)
    config = RouterConfig(
        (str(MODEL),), kvstore=mesh.kvstore_address, server=server, tenants=tenants
    )
    process = RouterProcess(config)
    try:
        yield await process.start()
    finally:
        await process.close()


async def ask(address: str, key: str = ACME) -> Answer:
    async with open_channel(address) as channel:
        console: console_pb2_grpc.ConsoleAsyncStub = console_pb2_grpc.ConsoleStub(channel)
        metadata = pairs(bearer(key)) if key else None
        request = console_pb2.ConsoleMetricsRequest()
        return await read(console.Metrics(request, timeout=20, metadata=metadata))


async def page(address: str) -> str:
    answer = await ask(address)
    assert answer.status == 200
    return answer.data.decode()


def counted(page: str) -> set[str]:
    """What requests counted in each router and worker."""
    lines = page.splitlines()
    return {
        line
        for line in lines
        if line.startswith("vllm:") and ("router=" in line or "worker=" in line)
    }


async def test_all_routers_give_the_same_page_and_one_that_restarts_resets_its_own_series(
    mesh: Mesh, keys: Path
) -> None:
    tenants, port = TenantsConfig(api_key_file=str(keys)), free_port()
    async with router(mesh, port, tenants) as other:
        assert (await mesh.completions(BODY, **bearer(ACME))).status == 200
        first, second = await page(mesh.address), await page(other)
        assert metric(first, TOKENS, router=mesh.address) == 2
        assert f'{TOKENS}{{router="{other}",engine="0",model_name="demo"}} 0.0' in first
        assert len(counted(first)) > 100
        assert counted(first) == counted(second)
        # The workers' own counts.
        assert metric(first, "vllm:iteration_tokens_total_sum", worker="decode-0") == 72
        assert metric(first, "vllm:num_requests_waiting") == 0
        assert first.count("\nvllm:num_requests_waiting{") == 1
    alone = await page(mesh.address)
    assert metric(alone, TOKENS, router=mesh.address) == 2
    assert f'router="{other}"' not in alone
    async with router(mesh, port, tenants) as again:
        assert again == other
        for each in (mesh.address, other):
            assert metric(await page(each), TOKENS, router=mesh.address) == 2


async def test_the_page_wants_a_key_unless_it_was_opened(mesh: Mesh, keys: Path) -> None:
    for key in ("", WRONG):
        assert (await ask(mesh.address, key)).status == 401
    opened = TenantsConfig(api_key_file=str(keys), open_metrics=True)
    async with router(mesh, free_port(), opened) as other:
        answer = await ask(other, key="")
        assert answer.status == 200
        # The first router wants one: it says nothing to whoever has none.
        assert f'router="{other}"' in answer.data.decode()
        assert f'router="{mesh.address}"' not in answer.data.decode()
        async with open_channel(other) as channel:
            process: process_pb2_grpc.ProcessAsyncStub = process_pb2_grpc.ProcessStub(channel)
            said = await process.Metrics(process_pb2.MetricsRequest(names=[TOKENS]), timeout=5)
            assert said.page.decode().splitlines()[2:] == [
                f'{TOKENS}{{engine="0",model_name="demo"}} 0.0'
            ]
            with pytest.raises(grpc.aio.AioRpcError) as refused:
                await process.Describe(process_pb2.DescribeRequest(), timeout=5)
            assert refused.value.code() is grpc.StatusCode.UNAUTHENTICATED
