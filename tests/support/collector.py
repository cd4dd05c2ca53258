"""A real collector of OpenTelemetry's data in a process of its own, which passes spans on to a receiver of a test."""

from __future__ import annotations

import ctypes
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import rotel

from pagemesh.config.environment import TracesProtocol
from tests.support.needs import lack
from tests.support.ports import free_port

_AGENT = Path(rotel.__file__).with_name("rotel-agent")
_LIBRARY = f"libpython3.{sys.version_info.minor}.so.1.0"
"""That the agent is linked with."""

_START_DEADLINE_S = 20.0


@contextmanager
def running_collector(
    folder: Path, receiver: str, protocol: TracesProtocol = "grpc"
) -> Iterator[str]:
    """The host:port at which one takes spans by the protocol, and sends them by gRPC to the receiver's."""
    try:
        ctypes.CDLL(_LIBRARY)
    except OSError:
        lack("libpython", f"there is no {_LIBRARY}")
    address = f"127.0.0.1:{free_port()}"
    places = [address, f"127.0.0.1:{free_port()}"]
    by_grpc, by_http = places if protocol == "grpc" else reversed(places)
    command = [
        str(_AGENT),
        "start",
        *("--otlp-grpc-endpoint", by_grpc),
        *("--otlp-http-endpoint", by_http),
        *("--exporter", "otlp"),
        *("--otlp-exporter-endpoint", f"http://{receiver}"),
        *("--batch-timeout", "100ms"),
        *("--pid-file", str(folder / "collector.pid")),
    ]
    with (folder / "collector.log").open("w") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True)
    try:
        _wait_for(address, process)
        yield address
    finally:
        process.kill()
        process.wait(10)


def _wait_for(address: str, process: subprocess.Popen[bytes]) -> None:
    host, _, port = address.rpartition(":")
    deadline = time.monotonic() + _START_DEADLINE_S
    while time.monotonic() < deadline and process.poll() is None:
        try:
            socket.create_connection((host, int(port)), timeout=1).close()
        except OSError:
            time.sleep(0.02)
        else:
            return
    raise AssertionError("the collector does not listen")
