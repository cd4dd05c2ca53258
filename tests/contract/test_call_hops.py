"""What every hop of a request is told: its id, its trace, and how much time is left."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import AsyncExitStack
from typing import Any, NamedTuple

import grpc
import pytest
from opentelemetry import trace

from pagemesh.config import SchedulerConfig
from pagemesh.decode.service import DECODE_ROLE
from pagemesh.kv_transfer.fetch import KvTransferServicer
from pagemesh.kv_transfer.importer import KvImporter
from pagemesh.kv_transfer.streams import PREFILL
from pagemesh.prefill.service import PREFILL_ROLE
from pagemesh.prefill.servicer import PrefillServicer
from pagemesh.rpc.call_context import CallContext, current_call
from pagemesh.rpc.server import GrpcServer
from pagemesh.telemetry.spans import write_trace
from pagemesh.v1 import decode_pb2, prefill_pb2, types_pb2
from pagemesh.worker.server import Role
from pagemesh.worker.worker import Worker
from tests.fakes.engine import FakeEngine
from tests.support.waiting import wait_until
from tests.support.workers import RouterSession, RunningWorker, running_worker

PROMPT = [10 + (7 * i) % 900 for i in range(70)]
TRACE = {
    "traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
    "tracestate": "a=1,b=2",
}


class Told(NamedTuple):
    """What the task that serves a call knows of it."""

    call: CallContext
    trace: dict[str, str]


def told() -> Told:
    return Told(current_call(), write_trace(trace.get_current_span()))


class Witness(PrefillServicer):
    """An honest prefill worker that notes for whom its calls are."""

    def __init__(self, worker: Worker) -> None:
        super().__init__(worker, KvImporter(worker, "remote_pull"))
        self.calls: list[Told] = []

    async def Prefill(  # noqa: N802  # the name of the RPC
        self, request: prefill_pb2.PrefillRequest, context: grpc.aio.ServicerContext[Any, Any]
    ) -> AsyncGenerator[Any]:
        async for message in super().Prefill(request, context):
            yield message
        # By then it is what the servicer's own lines and calls said.
        self.calls.append(told())


@pytest.fixture
async def decode() -> AsyncIterator[RunningWorker]:
    async with running_worker(DECODE_ROLE, FakeEngine()) as running:
        yield running


def witnessed_role(witnesses: list[Witness]) -> Role:
    def add_services(worker: Worker, server: GrpcServer, stack: AsyncExitStack) -> None:
        witnesses.append(Witness(worker))
        server.add(PREFILL.add_to_server, witnesses[0].Prefill)

    return Role("prefill", PREFILL_ROLE.service_name, add_services)


@pytest.mark.parametrize(
    ("sent", "arrives"),
    [
        pytest.param(TRACE, TRACE, id="valid"),
        pytest.param({"traceparent": "00-malformed", "tracestate": "a=1"}, {}, id="malformed"),
    ],
)
async def test_a_prefill_worker_is_told_the_trace_and_the_time_that_is_left(
    decode: RunningWorker, sent: dict[str, str], arrives: dict[str, str]
) -> None:
    witnesses: list[Witness] = []
    async with (
        running_worker(witnessed_role(witnesses), FakeEngine()) as prefill,
        RouterSession(decode.address) as session,
    ):
        loop = asyncio.get_running_loop()
        before = loop.time()
        await session.submit(7, PROMPT, plan=prefill.plan, time_limit=9.0, trace=sent)
        assert (await session.over(7)).is_finished
        await wait_until(lambda: bool(witnesses[0].calls), "the call was seen")
        ((call, arrived),) = witnesses[0].calls
    assert (call.request_id, arrived) == ("client-7", arrives)
    assert call.deadline is not None
    assert before + 8.0 < call.deadline <= loop.time() + 9.0


@pytest.mark.parametrize("by", ["decode", "prefill"])
async def test_a_holder_of_kv_is_told_likewise(
    decode: RunningWorker, monkeypatch: pytest.MonkeyPatch, by: str
) -> None:
    calls: list[Told] = []
    honest = KvTransferServicer.Fetch

    async def fetch(self: Any, request: Any, context: Any) -> AsyncGenerator[Any]:
        calls.append(told())
        async for message in honest(self, request, context):
            yield message

    monkeypatch.setattr(KvTransferServicer, "Fetch", fetch)
    async with (
        running_worker(DECODE_ROLE, FakeEngine()) as holder,
        running_worker(PREFILL_ROLE, FakeEngine()) as prefill,
        RouterSession(holder.address) as warm_up,
        RouterSession(decode.address) as session,
    ):
        await warm_up.generate(1, PROMPT, max_tokens=1)
        plan = decode_pb2.PrefillPlan(source=holder.source(4))
        if by == "prefill":
            plan.workers.append(prefill.peer)
        received = await session.generate(7, PROMPT, plan=plan, time_limit=9.0, trace=TRACE)
    assert received.kv is not None
    path = types_pb2.KV_PATH_REMOTE_PULL if by == "prefill" else types_pb2.KV_PATH_PULL
    assert received.kv.path == path
    assert [(call.request_id, arrived) for call, arrived in calls] == [("client-7", TRACE)]
    assert calls[0].call.deadline is not None
    assert calls[0].call.deadline <= asyncio.get_running_loop().time() + 9.0


async def test_a_request_whose_time_is_over_ends_on_the_prefill_worker_too(
    decode: RunningWorker,
) -> None:
    small_steps = SchedulerConfig(8, max_num_batched_tokens=8)
    # Nine steps of half a second, of which two seconds are enough to see the first on a busy machine.
    slow = FakeEngine(seconds_per_token=0.5, scheduler=small_steps)
    async with (
        running_worker(PREFILL_ROLE, slow) as prefill,
        RouterSession(decode.address) as session,
    ):
        await session.submit(1, PROMPT, plan=prefill.plan, time_limit=2.0)
        await wait_until(lambda: not prefill.all_blocks_free(), "the prompt is being prefilled")
        received = await session.over(1)
        assert received.error is not None
        assert received.error.code == "DEADLINE_EXCEEDED"
        await wait_until(prefill.all_blocks_free, "all blocks of prefill free")
        await wait_until(decode.all_blocks_free, "all blocks of decode free")
