"""A router's start and stop."""

from __future__ import annotations

import socket
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from pagemesh.config import RouterConfig, ServerConfig
from pagemesh.errors import ConfigError
from pagemesh.router.service import RouterProcess
from pagemesh.rpc.channels import open_channel
from pagemesh.v1 import console_pb2, console_pb2_grpc
from tests.contract.http_answers import read
from tests.contract.router_harness import MODEL, running_mesh

NOBODY = "127.0.0.1:1"


def config(model: Path, port: int = 0, metrics_port: int | None = None) -> RouterConfig:
    server = ServerConfig(port=port, metrics_port=metrics_port, grace_period=0.2)
    return RouterConfig(model=(str(model),), kvstore=NOBODY, server=server)


async def test_it_serves_without_any_worker_or_kvstore(demo_model: Path) -> None:
    process = RouterProcess(config(demo_model, metrics_port=0))
    async with grpc.aio.insecure_channel(await process.start()) as channel:
        request = health_pb2.HealthCheckRequest(service="pagemesh.v1.OpenAI")
        health: Any = health_pb2_grpc.HealthStub(channel)  # its stubs know no methods
        answer = await health.Check(request, timeout=10)
    assert answer.status == health_pb2.HealthCheckResponse.SERVING
    await process.close()
    await process.close()


async def test_a_taken_port_is_one_clear_error(demo_model: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        for settings in (config(demo_model, port), config(demo_model, metrics_port=port)):
            process = RouterProcess(settings)
            with pytest.raises(ConfigError, match=str(port)):
                await process.start()
            await process.close()


async def test_a_folder_without_tokenizer_is_one_clear_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"has no tokenizer\.json"):
        RouterProcess(config(tmp_path))


async def test_it_serves_when_it_reaches_the_workers_that_are_there() -> None:
    async with running_mesh(decode=2) as mesh:
        server = ServerConfig(grace_period=0.2)
        settings = RouterConfig(model=(str(MODEL),), kvstore=mesh.kvstore_address, server=server)
        process = RouterProcess(settings)
        async with open_channel(await process.start()) as channel:
            console: console_pb2_grpc.ConsoleAsyncStub = console_pb2_grpc.ConsoleStub(channel)
            health = await read(console.Health(console_pb2.ConsoleHealthRequest()))
        assert health.json()["decode_workers"] == 2
        await process.close()
