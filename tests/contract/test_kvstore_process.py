"""The kvstore as a process of its own."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from typing import Any

import grpc
import psutil
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

SERVE = """
from pagemesh.config import KvStoreConfig, ServerConfig
from pagemesh.kvstore.service import run
run(KvStoreConfig(server=ServerConfig(metrics_port=0)))
"""
MAX_RSS_BYTES = 120_000_000


@pytest.fixture
def process() -> Iterator[subprocess.Popen[str]]:
    with subprocess.Popen([sys.executable, "-c", SERVE], stderr=subprocess.PIPE, text=True) as it:
        yield it
        it.kill()


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
