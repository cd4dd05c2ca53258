"""What the kvstore is told about the request for which it is asked."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from opentelemetry import trace

from pagemesh.kvstore.servicer import KvStoreServicer
from pagemesh.membership.directory import Directory
from pagemesh.rpc.call_context import CallContext, bind_call, current_call
from pagemesh.telemetry.spans import read_trace, write_trace
from tests.contract.kvstore_harness import running_kvstore

TRACE = {
    "traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
    "tracestate": "a=1,b=2",
}


async def test_a_lookup_takes_no_longer_than_its_caller_waits(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    calls: list[tuple[CallContext, dict[str, str]]] = []
    honest = KvStoreServicer.Lookup

    async def lookup(self: Any, request: Any, context: Any) -> Any:
        calls.append((current_call(), write_trace(trace.get_current_span())))
        return await honest(self, request, context)

    monkeypatch.setattr(KvStoreServicer, "Lookup", lookup)
    async with running_kvstore() as kvstore:
        directory = Directory(kvstore)
        await directory.start()
        loop = asyncio.get_running_loop()
        bind_call(CallContext("client-7", loop.time() + 2.0), read_trace(**TRACE))
        assert await directory.lookup([bytes(16)], "model-a", timeout=60.0) == {}
        await directory.close()
    assert [(call.request_id, told) for call, told in calls] == [("client-7", TRACE)]
    assert calls[0][0].deadline is not None
    # gRPC rounds up, to a hundredth here, and milliseconds as well.
    assert calls[0][0].deadline <= loop.time() + 2.02
