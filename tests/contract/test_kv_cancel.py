"""A request may end at any moment on the way of its KV: nobody keeps a block for it."""

from __future__ import annotations

import asyncio
import socket
import threading
import time
from collections.abc import AsyncIterator, Iterator

import pytest

from pagemesh.config import SchedulerConfig
from pagemesh.decode.messages import OutputBuffer, parse_submit
from pagemesh.decode.remote_prefill import RemotePrefiller
from pagemesh.decode.request import DecodeRequest
from pagemesh.decode.service import DECODE_ROLE
from pagemesh.kv_transfer import importer, streams
from pagemesh.prefill.service import PREFILL_ROLE
from pagemesh.rpc.channels import BulkCall, end_bulk_call
from pagemesh.v1 import decode_pb2, kv_transfer_pb2, types_pb2
from tests.fakes.engine import FakeEngine, expected_tokens
from tests.support.saboteur import Chunks, sabotaged_holder, sabotaged_role
from tests.support.waiting import wait_until
from tests.support.workers import RouterSession, RunningWorker, running_worker

PROMPT = [10 + (7 * i) % 900 for i in range(150)]

HOW = pytest.mark.parametrize("how", ["cancel", "break", "deadline"])


@pytest.fixture(autouse=True)
def patient_pulls(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have a request's time be over before that of its pull."""
    monkeypatch.setattr(importer, "PULL_SHARE", 2.0)


@pytest.fixture
async def decode() -> AsyncIterator[RunningWorker]:
    async with running_worker(DECODE_ROLE, FakeEngine()) as running:
        yield running
        await wait_until(running.all_blocks_free, "all blocks of decode free")


@pytest.fixture
def silent_address() -> Iterator[str]:
    """Takes connections and never says anything."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        yield f"127.0.0.1:{listener.getsockname()[1]}"


def silent_peer(address: str) -> types_pb2.PeerWorker:
    return types_pb2.PeerWorker(worker_id="silent", address=address, epoch=1)


def limit(how: str) -> float:
    """Seconds that a request gets."""
    return 1.0 if how == "deadline" else 20.0


async def end(session: RouterSession, handle: int, how: str) -> None:
    if how == "cancel":
        await session.cancel(handle)
    elif how == "break":
        session.call.cancel()


def outcomes(decode: RunningWorker, outcome: str) -> float:
    return decode.sample("pagemesh:remote_prefills_total", outcome=outcome)


@HOW
async def test_while_it_waits_for_blocks(how: str) -> None:
    engine = FakeEngine(num_blocks=16, seconds_per_token=0.03)
    async with (
        running_worker(PREFILL_ROLE, FakeEngine()) as prefill,
        running_worker(DECODE_ROLE, engine) as decode,
        RouterSession(decode.address) as other,
        RouterSession(decode.address) as session,
    ):
        await other.submit(1, PROMPT, max_tokens=100)
        await other.has_tokens(1)
        await session.submit(2, PROMPT[::-1], plan=prefill.plan, time_limit=limit(how))
        await wait_until(lambda: engine.load().num_waiting == 1, "the request waits")
        await end(session, 2, how)
        await wait_until(lambda: engine.load().num_waiting == 0, "it is gone")
        assert not other[1].is_over
        await other.cancel(1)
        await wait_until(decode.all_blocks_free, "all blocks of decode free")
        assert prefill.sample("pagemesh:kv_blocks_sent_total", rpc="prefill") == 0


@HOW
@pytest.mark.parametrize("what", ["worker", "source"])
async def test_while_it_connects(
    decode: RunningWorker, silent_address: str, how: str, what: str
) -> None:
    peer = silent_peer(silent_address)
    plan = decode_pb2.PrefillPlan()
    if what == "worker":
        plan.workers.append(peer)
    else:
        plan.source.worker.CopyFrom(peer)
        plan.source.block_count = 9
    async with RouterSession(decode.address) as session:
        await session.submit(1, PROMPT, plan=plan, time_limit=limit(how))
        await wait_until(lambda: not decode.all_blocks_free(), "the grant")
        await end(session, 1, how)
        await wait_until(decode.all_blocks_free, "all blocks of decode free")
    await wait_until(lambda: outcomes(decode, "cancelled") == 1, "the end of the import")


async def test_while_its_stream_waits_for_a_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    ended: list[BulkCall] = []

    def end(call: BulkCall) -> None:
        end_bulk_call(call)
        ended.append(call)

    async def stall_behind_the_header(chunks: Chunks) -> Chunks:
        async for chunk in chunks:
            yield chunk
            await asyncio.Event().wait()

    monkeypatch.setattr(streams, "MAX_STREAMS", 1)
    monkeypatch.setattr(streams, "end_bulk_call", end)
    async with (
        running_worker(sabotaged_role(stall_behind_the_header), FakeEngine()) as silent,
        running_worker(PREFILL_ROLE, FakeEngine(seconds_per_token=0.05)) as prefill,
        running_worker(DECODE_ROLE, FakeEngine()) as decode,
        RouterSession(decode.address) as session,
    ):
        await session.submit(1, PROMPT, plan=silent.plan)
        await wait_until(lambda: not silent.all_blocks_free(), "the first one is asked")
        await session.submit(2, PROMPT[::-1], plan=prefill.plan)
        await wait_until(lambda: not prefill.all_blocks_free(), "the second one is asked")
        assert not ended
        await session.cancel(2)
        await wait_until(prefill.all_blocks_free, "all blocks of the second one free")
        await wait_until(lambda: len(ended) == 1, "its call is ended")


@HOW
async def test_while_it_pulls(decode: RunningWorker, how: str) -> None:
    pulling = asyncio.Event()

    async def stall_behind_some_blocks(chunks: Chunks) -> Chunks:
        async for chunk in chunks:
            yield chunk
            pulling.set()
            await asyncio.Event().wait()

    async with (
        running_worker(sabotaged_holder(stall_behind_some_blocks), FakeEngine()) as holder,
        RouterSession(holder.address) as at_holder,
        RouterSession(decode.address) as session,
    ):
        await at_holder.generate(1, PROMPT, max_tokens=1)
        plan = decode_pb2.PrefillPlan(source=holder.source(9))
        await session.submit(1, PROMPT, plan=plan, time_limit=limit(how))
        await asyncio.wait_for(pulling.wait(), 5.0)
        await wait_until(lambda: not holder.all_blocks_free(), "blocks of the holder are pinned")
        await end(session, 1, how)
        await wait_until(decode.all_blocks_free, "all blocks of decode free")
        await wait_until(holder.all_blocks_free, "all blocks of the holder free")
    assert outcomes(decode, "cancelled") == 1
    assert decode.sample("pagemesh:kv_pulls_total", path="pull", outcome="cancelled") == 1


@HOW
async def test_between_two_workers(decode: RunningWorker, silent_address: str, how: str) -> None:
    gone = types_pb2.PeerWorker(worker_id="gone", address="127.0.0.1:1", epoch=1)
    plan = decode_pb2.PrefillPlan(workers=[gone, silent_peer(silent_address)])
    failures = "pagemesh:kv_import_failures_total"
    async with RouterSession(decode.address) as session:
        await session.submit(1, PROMPT, plan=plan, time_limit=limit(how))
        await wait_until(
            lambda: decode.sample(failures, rpc="prefill", reason="UNAVAILABLE") == 1,
            "the first one's failure",
        )
        await end(session, 1, how)
        await wait_until(decode.all_blocks_free, "all blocks of decode free")
    await wait_until(lambda: outcomes(decode, "cancelled") == 1, "the end of the import")


@HOW
async def test_while_the_prefill_worker_has_no_blocks_for_it(
    decode: RunningWorker, how: str
) -> None:
    # Room for one prompt; the other one's tokens come slowly.
    engine = FakeEngine(
        num_blocks=12,
        seconds_per_token=0.3,
        scheduler=SchedulerConfig(8, max_num_batched_tokens=32),
    )
    async with (
        running_worker(PREFILL_ROLE, engine) as prefill,
        RouterSession(decode.address) as other,
        RouterSession(decode.address) as session,
    ):
        await other.submit(1, PROMPT, plan=prefill.plan)
        await wait_until(lambda: not prefill.all_blocks_free(), "the first one has its blocks")
        await session.submit(2, PROMPT[::-1], plan=prefill.plan, time_limit=limit(how))
        await wait_until(lambda: engine.load().num_waiting == 1, "the second one waits")
        num_free = decode.worker.engine.load().num_free_blocks
        await end(session, 2, how)
        await wait_until(lambda: engine.load().num_waiting == 0, "the prefill worker forgot it")
        await wait_until(
            lambda: decode.worker.engine.load().num_free_blocks > num_free, "its blocks are free"
        )
        assert tuple((await other.over(1)).token_ids) == expected_tokens(PROMPT, 8)
        await wait_until(prefill.all_blocks_free, "all blocks of prefill free")


@HOW
async def test_while_the_prefill_worker_connects_to_the_source(
    decode: RunningWorker, silent_address: str, how: str
) -> None:
    source = kv_transfer_pb2.KvSource(worker=silent_peer(silent_address), block_count=9)
    async with (
        running_worker(PREFILL_ROLE, FakeEngine()) as prefill,
        RouterSession(decode.address) as session,
    ):
        plan = decode_pb2.PrefillPlan(workers=[prefill.peer], source=source)
        await session.submit(1, PROMPT, plan=plan, time_limit=limit(how))
        await wait_until(lambda: not prefill.all_blocks_free(), "the grant")
        await end(session, 1, how)
        await wait_until(prefill.all_blocks_free, "all blocks of prefill free")
        await wait_until(decode.all_blocks_free, "all blocks of decode free")
        assert (
            prefill.sample("pagemesh:kv_pulls_total", path="remote_pull", outcome="complete") == 0
        )


async def test_the_prefill_worker_stops_at_once_though_the_decode_worker_is_in_a_long_step() -> (
    None
):
    slow = FakeEngine(seconds_per_token=0.2, scheduler=SchedulerConfig(8, max_num_batched_tokens=8))
    busy, begun, may_end = FakeEngine(), threading.Event(), threading.Event()

    def compute_until_told(layer: int) -> None:
        begun.set()
        assert may_end.wait(20)

    async with (
        running_worker(PREFILL_ROLE, slow) as prefill,
        running_worker(DECODE_ROLE, busy) as decode,
        RouterSession(decode.address) as session,
    ):
        await session.submit(1, PROMPT, plan=prefill.plan)
        await wait_until(lambda: not prefill.all_blocks_free(), "the prompt is prefilled")
        busy.runner.before_layer = compute_until_told
        await session.submit(2, PROMPT[::-1])
        await wait_until(begun.is_set, "the long step")
        await session.cancel(1)
        await wait_until(prefill.all_blocks_free, "all blocks of prefill free")
        # Stopped at a chunk's boundary, not run to its end.
        assert prefill.sample("vllm:generation_tokens_total", model_name="fake") == 0
        assert not session[1].is_over
        may_end.set()
        await session.over(1)
        await session.over(2)
        await wait_until(decode.all_blocks_free, "all blocks of decode free")


async def test_blocks_that_were_granted_before_the_cancellation_are_not_filled(
    decode: RunningWorker,
) -> None:
    ended: list[int] = []
    async with running_worker(PREFILL_ROLE, FakeEngine()) as prefill:
        prefiller = RemotePrefiller(decode.worker)
        submit = decode_pb2.Submit(
            handle=1,
            prompt_token_ids=PROMPT,
            sampling=types_pb2.SamplingParams(max_tokens=8),
            prefill_plan=prefill.plan,
        )
        request = DecodeRequest(
            decode.worker, prefiller, OutputBuffer(), parse_submit(submit, "r", None), ended.append
        )
        request.start()
        while decode.all_blocks_free():  # without letting the loop hear of the grant
            time.sleep(0.001)  # noqa: ASYNC251
        request.cancel()
        await wait_until(lambda: ended == [1], "the end of the request")
        await wait_until(decode.all_blocks_free, "all blocks of decode free")
        assert outcomes(decode, "cancelled") == 0
        await prefiller.close()
