"""A worker as a process: what it says when it serves, and how it stops."""

from __future__ import annotations

import asyncio
import json
import signal
import sys
import urllib.request
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from pagemesh.rpc.channels import open_channel
from tests.support.engine_processes import engine_processes
from tests.support.waiting import wait_until
from tests.support.workers import RouterSession

pytestmark = pytest.mark.costly

START_DEADLINE_S = 120.0
"""Of five CPU seconds, on cores that ten others want."""

PROGRAM = """
import sys
from pagemesh.config import CacheConfig, ModelConfig, ServerConfig, WorkerConfig
from pagemesh.{role}.service import run

run(
    WorkerConfig(
        model=ModelConfig(model=sys.argv[1], threads=1),
        cache=CacheConfig(kv_cache_memory=0.05),
        server=ServerConfig(metrics_port=0),
    )
)
"""


@asynccontextmanager
async def worker_process(role: str, model: Path) -> AsyncIterator[asyncio.subprocess.Process]:
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-c",
        PROGRAM.format(role=role),
        str(model),
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        yield process
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


async def serving_line(process: asyncio.subprocess.Process) -> dict[str, Any]:
    assert process.stderr is not None
    async with asyncio.timeout(START_DEADLINE_S):
        while line := await process.stderr.readline():
            event: dict[str, Any] = json.loads(line)
            if event["event"] == "serving":
                return event
    raise AssertionError("the process ended before it served")


@pytest.mark.parametrize("role", ["prefill", "decode"])
async def test_a_worker_says_where_it_serves_and_stops_when_told(
    demo_model: Path, role: str
) -> None:
    async with worker_process(role, demo_model) as process:
        line = await serving_line(process)
        assert line["service"] == role
        assert line["worker_id"] == f"{role}-127.0.0.1-{line['address'].rpartition(':')[2]}"
        async with open_channel(line["address"]) as channel:
            stub: Any = health_pb2_grpc.HealthStub(channel)
            health = await stub.Check(health_pb2.HealthCheckRequest(), timeout=5)
        assert health.status == health_pb2.HealthCheckResponse.SERVING
        url = f"http://{line['metrics_address']}/metrics"
        page = await asyncio.to_thread(lambda: urllib.request.urlopen(url, timeout=5).read())
        assert b'pagemesh:kv_blocks_free{model_name="demo"}' in page
        process.send_signal(signal.SIGTERM)
        assert await asyncio.wait_for(process.wait(), 5) == 0


async def test_a_worker_stops_in_time_although_a_request_runs(demo_model: Path) -> None:
    async with worker_process("decode", demo_model) as process:
        line = await serving_line(process)
        async with RouterSession(line["address"]) as session:
            await session.submit(1, [20, 21, 22], max_tokens=1500)
            await session.has_tokens(1)
            process.send_signal(signal.SIGTERM)
            # Three seconds of grace, and what a busy machine needs on top.
            assert await asyncio.wait_for(process.wait(), 10) == 0


async def test_a_worker_that_still_loads_stops_at_once(demo_model: Path) -> None:
    async with worker_process("decode", demo_model) as process:
        engine = await engine_of(process)
        # Frozen, it loads for ever.
        engine.suspend()
        process.send_signal(signal.SIGTERM)
        assert await asyncio.wait_for(process.wait(), 5) == 0
        assert not engine.is_running()


async def test_a_worker_and_its_requests_end_with_its_engine(demo_model: Path) -> None:
    async with worker_process("decode", demo_model) as process:
        line = await serving_line(process)
        engine = await engine_of(process)
        async with RouterSession(line["address"]) as session:
            await session.submit(1, [20, 21, 22], max_tokens=1500)
            await session.has_tokens(1)
            engine.kill()
            error = (await session.over(1)).error
            assert error is not None
            assert (error.code, error.reason) == ("UNAVAILABLE", "WORKER_LOST")
        assert await asyncio.wait_for(process.wait(), 10) == 1
        assert process.stderr is not None
        assert "InternalError: the engine was lost" in (await process.stderr.read()).decode()


async def engine_of(process: asyncio.subprocess.Process) -> psutil.Process:
    """The engine's process, as soon as it runs its own program."""
    await wait_until(lambda: bool(engine_processes(of=process.pid)), "the engine's process", 60)
    return engine_processes(of=process.pid)[0]
