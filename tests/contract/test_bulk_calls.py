"""Calls that end leave nothing behind, however they end."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent import futures
from typing import Any

import grpc
import pytest

from tests.support.call_growth import ENDS

MAX_GROWTH = 8 << 20
"""Bytes; all the calls together would be four times as much, if gRPC kept them."""


class Streams(grpc.GenericRpcHandler):
    """Sends two messages and then waits for the caller's end, as who sends KV does."""

    def service(self, handler_call_details: Any) -> grpc.RpcMethodHandler[bytes, bytes]:
        return grpc.unary_stream_rpc_method_handler(self._stream)

    def _stream(self, request: bytes, context: grpc.ServicerContext) -> Iterator[bytes]:
        yield b"first"
        yield b"second"
        while context.is_active():
            time.sleep(0.001)


@pytest.fixture
def address() -> Iterator[str]:
    server = grpc.server(futures.ThreadPoolExecutor(4), handlers=[Streams()])
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    yield f"127.0.0.1:{port}"
    server.stop(0).wait(10)


@pytest.mark.product(found_bugs=["never_read"], most=1)
@pytest.mark.parametrize("end", ENDS)
def test_a_call_that_was_ended_keeps_no_memory(address: str, end: str) -> None:
    command = [sys.executable, "-m", "tests.support.call_growth", address, end]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    assert int(done.stdout) < MAX_GROWTH
