"""The kvstore as a process of its own."""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import AsyncExitStack, contextmanager
from typing import Any

import grpc
import psutil
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from tests.contract.kvstore_harness import (
    PublishingWorker,
    connected,
    directory_of,
    eventually,
    index_becomes,
)
from tests.support.ports import free_port
from tests.unit.kvstore.builders import make_worker

SERVE = """
import sys
from pagemesh.config import KvStoreConfig, ServerConfig
from pagemesh.kvstore.service import run
run(KvStoreConfig(server=ServerConfig(port=int(sys.argv[1]), metrics_port=0)))
"""
MAX_RSS_BYTES = 120_000_000


@contextmanager
def kvstore_process(port: int = 0) -> Iterator[subprocess.Popen[str]]:
    arguments = [sys.executable, "-c", SERVE, str(port)]
    with subprocess.Popen(arguments, stderr=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


@pytest.fixture
def process() -> Iterator[subprocess.Popen[str]]:
    with kvstore_process() as it:
        yield it


def serving_line(process: subprocess.Popen[str]) -> dict[str, str]:
    """What the process logs once it serves; ends with the process at the latest."""
    assert process.stderr is not None
    for line in process.stderr:
        fields: dict[str, str] = json.loads(line)
        if fields["event"] == "serving":
            return fields
    raise AssertionError("the process ended before it served")


def test_it_answers_health_and_metrics_stays_small_and_stops_on_sigterm(
    process: subprocess.Popen[str],
) -> None:
    line = serving_line(process)
    assert line["service"] == "kvstore"
    with grpc.insecure_channel(line["address"]) as channel:
        stub: Any = health_pb2_grpc.HealthStub(channel)  # its stubs know no methods
        for service in ("", "pagemesh.v1.KvStore"):
            health = stub.Check(health_pb2.HealthCheckRequest(service=service), timeout=10)
            assert health.status == health_pb2.HealthCheckResponse.SERVING
    with urllib.request.urlopen(f"http://{line['metrics_address']}/metrics", timeout=10) as page:
        assert b"pagemesh:kvstore_workers 0.0" in page.read()
    assert psutil.Process(process.pid).memory_info().rss < MAX_RSS_BYTES

    process.send_signal(signal.SIGTERM)
    assert process.wait(timeout=5) == 0


async def test_one_that_was_killed_is_filled_again_by_all_workers_at_once() -> None:
    port = free_port()
    kvstore = f"127.0.0.1:{port}"
    async with AsyncExitStack() as workers, directory_of(kvstore) as directory:
        publishing = [
            await workers.enter_async_context(
                PublishingWorker(kvstore, make_worker(f"worker-{number}", num_blocks=200))
            )
            for number in range(4)
        ]
        for worker in publishing:
            await worker.generate(range(20, 420))
        expected = {worker.info.worker_id: worker.cached for worker in publishing}
        assert [len(blocks) for blocks in expected.values()] == [100] * 4
        for _ in range(2):
            with kvstore_process(port) as process:
                await asyncio.to_thread(serving_line, process)
                async with connected(kvstore) as stub:
                    await index_becomes(stub, expected)
                await eventually(lambda: sum(w.live for w in directory.workers()) == 4)
                process.send_signal(signal.SIGKILL)
            # While it is away, the workers that are known stay known.
            await eventually(lambda: not any(worker.live for worker in directory.workers()))
            assert len(directory.workers()) == 4


async def test_one_that_is_frozen_costs_a_few_requests_the_lookup_and_is_asked_again_later() -> (
    None
):
    with kvstore_process() as process:
        line = await asyncio.to_thread(serving_line, process)
        async with directory_of(line["address"]) as directory:
            assert await directory.lookup([bytes(16)], "model-a", timeout=5.0) == {}
            process.send_signal(signal.SIGSTOP)
            loop = asyncio.get_running_loop()
            num_waited = 0
            for _ in range(50):
                began_at = loop.time()
                assert await directory.lookup([bytes(16)], "model-a", 0.02) is None
                num_waited += loop.time() - began_at >= 0.019
            process.send_signal(signal.SIGCONT)
            # Three in a row, and those that tried again, however long the others took.
            assert 3 <= num_waited <= 6
            found: list[dict[str, int]] = []

            async def ask() -> bool:
                answer = await directory.lookup([bytes(16)], "model-a", timeout=1.0)
                found.extend([] if answer is None else [answer])
                return bool(found)

            deadline = loop.time() + 10.0
            while not await ask():
                assert loop.time() < deadline, "it was never asked again"
                await asyncio.sleep(0.02)
