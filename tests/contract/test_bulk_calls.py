"""Calls that end leave nothing behind, however they end."""

from __future__ import annotations

import gc
import threading
from collections.abc import Iterator
from concurrent import futures
from typing import Any

import grpc
import psutil
import pytest

from pagemesh.rpc.channels import BulkCall, end_bulk_call, open_bulk_channel

NUM_CALLS = 1_500
MAX_GROWTH = 8 << 20
"""Bytes; a call that gRPC keeps has 20 KB."""


class Streams(grpc.GenericRpcHandler):
    """Sends two messages and then waits for the caller's end, as who sends KV does."""

    def service(self, handler_call_details: Any) -> grpc.RpcMethodHandler[bytes, bytes]:
        return grpc.unary_stream_rpc_method_handler(self._stream)

    def _stream(self, request: bytes, context: grpc.ServicerContext) -> Iterator[bytes]:
        over = threading.Event()
        context.add_callback(over.set)
        yield b"first"
        yield b"second"
        over.wait(10)


@pytest.fixture
def channel() -> Iterator[grpc.Channel]:
    server = grpc.server(futures.ThreadPoolExecutor(4), handlers=[Streams()])
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    with open_bulk_channel(f"127.0.0.1:{port}") as opened:
        yield opened
    server.stop(0).wait(10)


def read_to_the_end(call: BulkCall) -> None:
    messages = iter(call)
    assert [next(messages), next(messages)] == [b"first", b"second"]
    end_bulk_call(call)


def stop_while_it_waits(call: BulkCall) -> None:
    """As another thread ends it while this one reads."""
    messages = iter(call)
    assert [next(messages), next(messages)] == [b"first", b"second"]
    stopper = threading.Thread(target=call.cancel)
    stopper.start()
    with pytest.raises(grpc.RpcError):
        next(messages)
    stopper.join(10)
    end_bulk_call(call)


def never_read(call: BulkCall) -> None:
    end_bulk_call(call)
    end_bulk_call(call)


@pytest.mark.parametrize("end", [read_to_the_end, stop_while_it_waits, never_read])
def test_a_call_that_was_ended_keeps_no_memory(channel: grpc.Channel, end: Any) -> None:
    stream: grpc.UnaryStreamMultiCallable[bytes, bytes] = channel.unary_stream("/any/stream")
    process = psutil.Process()
    # What gRPC keeps for itself is there behind the first calls.
    for number in range(300 + NUM_CALLS):
        if number == 300:
            gc.collect()
            before = process.memory_info().rss
        end(stream(b"", timeout=20))
    gc.collect()
    assert process.memory_info().rss - before < MAX_GROWTH
