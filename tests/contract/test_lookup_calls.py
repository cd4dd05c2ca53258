"""What the kvstore is told about the request for which it is asked."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from pagemesh.kvstore.servicer import KvStoreServicer
from pagemesh.membership.directory import Directory
from pagemesh.rpc.call_context import CallContext, bind_call, current_call
from pagemesh.telemetry.trace_context import TraceContext
from tests.contract.kvstore_harness import running_kvstore

TRACE = TraceContext("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", "a=1,b=2")


async def test_a_lookup_takes_no_longer_than_its_caller_waits(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    calls: list[CallContext] = []
    honest = KvStoreServicer.Lookup

    async def lookup(self: Any, request: Any, context: Any) -> Any:
        calls.append(current_call())
        return await honest(self, request, context)

    monkeypatch.setattr(KvStoreServicer, "Lookup", lookup)
    async with running_kvstore() as kvstore:
        directory = Directory(kvstore)
        await directory.start()
        loop = asyncio.get_running_loop()
        bind_call(CallContext("client-7", TRACE, loop.time() + 2.0))
        assert await directory.lookup([bytes(16)], "model-a", timeout=60.0) == {}
        await directory.close()
    assert [(call.request_id, call.trace) for call in calls] == [("client-7", TRACE)]
    assert calls[0].deadline is not None
    # gRPC rounds up, to a hundredth here, and milliseconds as well.
    assert calls[0].deadline <= loop.time() + 2.02
