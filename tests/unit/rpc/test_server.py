"""The lifecycle of a server and the boundary around its RPCs, with the KvStore service as an example."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import time
from collections.abc import AsyncGenerator, AsyncIterator
from typing import Any

import grpc
import pytest
import structlog
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from pagemesh.config import ServerConfig
from pagemesh.errors import ConfigError, OverloadedError, PagemeshError
from pagemesh.rpc import boundary
from pagemesh.rpc.channels import open_channel
from pagemesh.rpc.server import GrpcServer, stop_on_signals
from pagemesh.rpc.status import from_rpc_error
from pagemesh.v1 import kvstore_pb2, kvstore_pb2_grpc
from tests.support.waiting import wait_until

SERVICE = "pagemesh.v1.KvStore"
SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING


class ExampleServicer(kvstore_pb2_grpc.KvStoreServicer):
    """Lookup fails as it is told to; Watch streams until it is closed, and says when that was."""

    def __init__(self, error: Exception | None = None) -> None:
        self.error = error
        self.request_id = ""
        self.num_open = 0
        self.watch: asyncio.Task[Any] | None = None
        self.closing = asyncio.Event()

    async def Lookup(  # noqa: N802  # the name of the RPC
        self, request: kvstore_pb2.LookupRequest, context: grpc.aio.ServicerContext[Any, Any]
    ) -> kvstore_pb2.LookupResponse:
        self.request_id = structlog.contextvars.get_contextvars().get("request_id", "")
        if self.error is not None:
            raise self.error
        return kvstore_pb2.LookupResponse()

    ListWatchers = Publish = Register = Snapshot = None  # type: ignore[assignment]  # not called here

    async def Watch(  # noqa: N802  # the name of the RPC
        self, request: kvstore_pb2.WatchRequest, context: grpc.aio.ServicerContext[Any, Any]
    ) -> AsyncGenerator[kvstore_pb2.WatchResponse]:
        self.num_open += 1
        self.watch = asyncio.current_task()
        try:
            yield kvstore_pb2.WatchResponse(revision=1)
            if self.error is not None:
                raise self.error
            # Larger than what gRPC takes without a reader: the stream is closed while it sends.
            while True:
                yield kvstore_pb2.WatchResponse(left="x" * 1_000_000)
        finally:
            self.closing.set()
            await asyncio.to_thread(time.sleep, 0.05)  # as a copy that must end first
            self.num_open -= 1


async def serve(server: GrpcServer, servicer: ExampleServicer) -> str:
    address = await server.start()
    server.add(kvstore_pb2_grpc.add_KvStoreServicer_to_server, servicer)
    await server.set_serving()
    return address


@pytest.fixture
async def server() -> AsyncIterator[GrpcServer]:
    server = GrpcServer(ServerConfig(grace_period=0.1), [SERVICE])
    yield server
    await server.close()


async def check(address: str, service: str) -> int:
    async with open_channel(address) as channel:
        stub: Any = health_pb2_grpc.HealthStub(channel)  # the stubs know no methods
        response = await stub.Check(health_pb2.HealthCheckRequest(service=service), timeout=5)
        return int(response.status)


async def lookup(address: str, **options: Any) -> kvstore_pb2.LookupResponse:
    async with open_channel(address) as channel:
        stub: kvstore_pb2_grpc.KvStoreAsyncStub = kvstore_pb2_grpc.KvStoreStub(channel)
        return await stub.Lookup(kvstore_pb2.LookupRequest(), timeout=5, **options)


async def refusal(address: str) -> PagemeshError:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await lookup(address)
    return from_rpc_error(caught.value)


async def test_health_is_not_serving_until_told_otherwise(server: GrpcServer) -> None:
    address = await server.start()
    for service in ("", SERVICE):
        assert await check(address, service) == NOT_SERVING
    await server.set_serving()
    for service in ("", SERVICE):
        assert await check(address, service) == SERVING


async def test_calls_are_refused_until_it_serves(server: GrpcServer) -> None:
    address = await server.start()
    error = await refusal(address)
    assert (error.grpc_code, error.reason) == ("UNAVAILABLE", "NOT_READY")
    server.add(kvstore_pb2_grpc.add_KvStoreServicer_to_server, ExampleServicer())
    await server.set_serving()
    await lookup(address)


async def test_reflection_names_the_services(server: GrpcServer) -> None:
    address = await server.start()
    async with open_channel(address) as channel:
        stub_of_any: Any = reflection_pb2_grpc.ServerReflectionStub
        call = stub_of_any(channel).ServerReflectionInfo()
        await call.write(reflection_pb2.ServerReflectionRequest(list_services=""))
        response = await call.read()
        call.cancel()
    names = {service.name for service in response.list_services_response.service}
    assert names == {
        SERVICE,
        "grpc.health.v1.Health",
        "grpc.reflection.v1alpha.ServerReflection",
        "pagemesh.v1.Process",
    }


async def test_unknown_methods_are_unimplemented(server: GrpcServer) -> None:
    address = await serve(server, ExampleServicer())
    async with open_channel(address) as channel:
        call: grpc.aio.UnaryUnaryMultiCallable[bytes, bytes] = channel.unary_unary(
            "/pagemesh.v1.KvStore/Forget"
        )
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await call(b"", timeout=5)
    assert caught.value.code() == grpc.StatusCode.UNIMPLEMENTED


async def test_a_taken_port_is_a_config_error_that_names_it() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        server = GrpcServer(ServerConfig(port=port), [SERVICE])
        with pytest.raises(ConfigError, match=f"127.0.0.1:{port}: Address already in use"):
            await server.start()
        await server.close()


async def test_a_port_that_another_server_has_is_taken(server: GrpcServer) -> None:
    port = int((await server.start()).rpartition(":")[2])
    second = GrpcServer(ServerConfig(port=port), [SERVICE])
    with pytest.raises(ConfigError, match=str(port)):
        await second.start()
    await second.close()


async def test_a_foreign_address_is_a_config_error() -> None:
    server = GrpcServer(ServerConfig(host="192.0.2.1"), [SERVICE])
    with pytest.raises(ConfigError, match=r"192\.0\.2\.1:0"):
        await server.start()
    await server.close()


async def test_exceptions_reach_the_caller_with_code_and_reason(server: GrpcServer) -> None:
    address = await serve(server, ExampleServicer(OverloadedError("full", reason="QUEUE_FULL")))
    error = await refusal(address)
    assert isinstance(error, OverloadedError)
    assert (error.message, error.reason) == ("full", "QUEUE_FULL")


async def test_an_unknown_exception_is_logged_and_tells_the_caller_nothing(
    server: GrpcServer,
) -> None:
    address = await serve(server, ExampleServicer(ValueError("secret")))
    with structlog.testing.capture_logs() as logs:
        error = await refusal(address)
    assert (error.grpc_code, error.message) == ("INTERNAL", "internal error")
    assert [str(line["exc_info"]) for line in logs if line["event"] == "rpc failed"] == ["secret"]


@pytest.mark.parametrize("raw", [b"\x12\x03\xff\xfe\xfd", b"\x12\x7fabc", b"\x0a"])
@pytest.mark.parametrize("method", ["Lookup", "Watch"])
async def test_bytes_that_are_no_message_are_the_callers_mistake(
    server: GrpcServer, method: str, raw: bytes
) -> None:
    servicer = ExampleServicer()
    async with open_channel(await serve(server, servicer)) as channel:
        call: Any = channel.unary_stream(f"/{SERVICE}/{method}")
        with (
            structlog.testing.capture_logs() as logs,
            pytest.raises(grpc.aio.AioRpcError) as caught,
        ):
            _ = [response async for response in call(raw, timeout=10)]
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert f"a message of {len(raw)} bytes cannot be read" in str(caught.value.details())
    assert from_rpc_error(caught.value).reason == "MALFORMED_MESSAGE"
    (entry,) = [entry for entry in logs if entry["log_level"] != "debug"]
    assert (entry["event"], entry["log_level"]) == ("rpc refused", "info")


@pytest.mark.parametrize("method", ["Lookup", "Watch"])
async def test_a_call_without_its_message_is_answered_at_once(
    server: GrpcServer, method: str
) -> None:
    async with open_channel(await serve(server, ExampleServicer())) as channel:
        call: Any = channel.stream_stream(f"/{SERVICE}/{method}")
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            _ = [response async for response in call([], timeout=10)]
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert caught.value.details() == "the call ended without a message"


async def test_a_message_that_does_not_come_is_not_waited_for(
    server: GrpcServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(boundary, "MESSAGE_TIMEOUT", 0.05)
    async with open_channel(await serve(server, ExampleServicer())) as channel:
        call: Any = channel.stream_stream(f"/{SERVICE}/Lookup")(timeout=10)
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await call.read()
        assert caught.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
        assert call.time_remaining() > 5


async def test_a_stream_that_fails_ends_with_the_status(server: GrpcServer) -> None:
    address = await serve(server, ExampleServicer(OverloadedError("full")))
    async with open_channel(address) as channel:
        stub: kvstore_pb2_grpc.KvStoreAsyncStub = kvstore_pb2_grpc.KvStoreStub(channel)
        call = stub.Watch(kvstore_pb2.WatchRequest(), timeout=5)
        first = await call.read()
        assert isinstance(first, kvstore_pb2.WatchResponse)
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await call.read()
    assert isinstance(from_rpc_error(caught.value), OverloadedError)


async def test_a_cancelled_stream_runs_its_finally_before_the_call_ends(server: GrpcServer) -> None:
    servicer = ExampleServicer()
    address = await serve(server, servicer)
    async with open_channel(address) as channel:
        stub: kvstore_pb2_grpc.KvStoreAsyncStub = kvstore_pb2_grpc.KvStoreStub(channel)
        call = stub.Watch(kvstore_pb2.WatchRequest(), timeout=5)
        await call.read()
        assert servicer.num_open == 1
        call.cancel()
        await asyncio.wait_for(servicer.closing.wait(), 5)
        assert servicer.watch is not None
        # As grpc does when a failed write was the first to tell that the peer is gone.
        servicer.watch.cancel()
        await asyncio.wait([servicer.watch], timeout=5)
        assert servicer.watch.done()
        # Not, some time later, by the garbage collector.
        assert servicer.num_open == 0


async def test_a_write_that_fails_because_the_caller_left_is_no_error(
    server: GrpcServer, caplog: pytest.LogCaptureFixture
) -> None:
    servicer = ExampleServicer(grpc.aio.InternalError("a write failed"))
    address = await serve(server, servicer)
    async with open_channel(address) as channel:
        stub: kvstore_pb2_grpc.KvStoreAsyncStub = kvstore_pb2_grpc.KvStoreStub(channel)
        call = stub.Watch(kvstore_pb2.WatchRequest(), timeout=5)
        await call.read()
        await wait_until(lambda: servicer.closing.is_set() and not servicer.num_open, "it failed")
        call.cancel()
        assert servicer.watch is not None
        await asyncio.wait([servicer.watch], timeout=5)
        assert servicer.watch.done()
    assert [record.getMessage() for record in caplog.records] == []


async def test_the_request_id_of_the_metadata_is_bound_to_the_logs(server: GrpcServer) -> None:
    servicer = ExampleServicer()
    address = await serve(server, servicer)
    await lookup(address, metadata=(("x-request-id", "abc"),))
    assert servicer.request_id == "abc"
    await lookup(address)
    assert servicer.request_id == ""


async def test_closing_drains_before_it_stops(server: GrpcServer) -> None:
    seen: list[tuple[str, int]] = []
    address = await serve(server, ExampleServicer())
    async with open_channel(address) as channel:
        health: Any = health_pb2_grpc.HealthStub(channel)
        watch = health.Watch(health_pb2.HealthCheckRequest(service=""), timeout=5)
        assert (await watch.read()).status == SERVING

        async def note_health() -> None:
            seen.append(("hook", (await watch.read()).status))

        server.on_drain(note_health)
        await server.close()
    assert seen == [("hook", NOT_SERVING)]
    await server.close()


async def test_a_failing_drain_hook_does_not_keep_the_server_from_stopping(
    server: GrpcServer,
) -> None:
    async def fail() -> None:
        raise ValueError("broken")

    async def hang() -> None:
        await asyncio.Event().wait()

    address = await serve(server, ExampleServicer())
    server.on_drain(fail)
    server.on_drain(hang)
    with structlog.testing.capture_logs() as logs:
        await asyncio.wait_for(server.close(), 3.0)
    assert [line["event"] for line in logs] == [
        "drain hook failed",
        "drain hook was cut off by the grace period",
    ]
    with pytest.raises(grpc.aio.AioRpcError):
        await lookup(address)


async def test_closing_waits_for_what_ended_calls_give_back() -> None:
    servicer = ExampleServicer()
    server = GrpcServer(ServerConfig(grace_period=0.0), [SERVICE])
    address = await serve(server, servicer)
    async with open_channel(address) as channel:
        stub: kvstore_pb2_grpc.KvStoreAsyncStub = kvstore_pb2_grpc.KvStoreStub(channel)
        calls = [stub.Watch(kvstore_pb2.WatchRequest(), timeout=5) for _ in range(20)]
        for call in calls:
            await call.read()
        assert servicer.num_open == 20
        await server.close()
        assert servicer.num_open == 0


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT], ids=lambda number: number.name)
async def test_signals_ask_to_stop(number: signal.Signals) -> None:
    loop = asyncio.get_running_loop()
    stop = stop_on_signals()
    try:
        os.kill(os.getpid(), number)
        await asyncio.wait_for(stop.wait(), 2.0)
    finally:
        loop.remove_signal_handler(signal.SIGTERM)
        loop.remove_signal_handler(signal.SIGINT)


async def test_a_caller_that_reads_nothing_does_not_keep_what_its_call_holds(
    server: GrpcServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(boundary, "WRITE_TIMEOUT", 0.2)
    servicer = ExampleServicer()
    address = await serve(server, servicer)
    async with open_channel(address) as channel:
        stub: kvstore_pb2_grpc.KvStoreAsyncStub = kvstore_pb2_grpc.KvStoreStub(channel)
        call = stub.Watch(kvstore_pb2.WatchRequest())
        await wait_until(lambda: servicer.num_open == 1, "the stream is open")
        # Its connection is well, and answers pings.
        await wait_until(lambda: servicer.num_open == 0, "the stream is closed")
        call.cancel()
