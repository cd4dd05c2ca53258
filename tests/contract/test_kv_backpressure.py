"""Who has no room makes others wait, and they neither compute nor buffer for it; waiting is no failure."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import grpc
import pytest

from pagemesh.cache.block_hash import hash_blocks, root_hash
from pagemesh.config import SchedulerConfig
from pagemesh.decode.service import DECODE_ROLE
from pagemesh.kv_transfer import streams
from pagemesh.kv_transfer.peers import PeerChannels
from pagemesh.kv_transfer.streams import FETCH, PREFILL
from pagemesh.prefill import servicer
from pagemesh.prefill.service import PREFILL_ROLE
from pagemesh.rpc.channels import BULK_WINDOW_BYTES, BulkCall, open_channel
from pagemesh.v1 import (
    decode_pb2,
    kv_transfer_pb2,
    prefill_pb2,
    prefill_pb2_grpc,
    types_pb2,
)
from tests.fakes.engine import FakeEngine, expected_tokens
from tests.support.saboteur import Chunks, sabotaged_role
from tests.support.waiting import wait_until
from tests.support.workers import RouterSession, RunningWorker, running_worker

PROMPT = [10 + (7 * i) % 900 for i in range(150)]
OTHER_PROMPT = [12 + (5 * i) % 900 for i in range(150)]


async def test_nobody_is_called_before_there_are_blocks() -> None:
    calls = []

    async def noted(chunks: Chunks) -> Chunks:
        calls.append("Prefill")
        async for chunk in chunks:
            yield chunk

    # Room for one request; decoding takes it long enough.
    decode_engine = FakeEngine(num_blocks=16, seconds_per_token=0.01)
    async with (
        running_worker(sabotaged_role(noted), FakeEngine()) as prefill,
        running_worker(DECODE_ROLE, FakeEngine()) as holder,
        running_worker(DECODE_ROLE, decode_engine) as decode,
        RouterSession(holder.address) as at_holder,
        RouterSession(decode.address) as session,
    ):
        await at_holder.generate(1, OTHER_PROMPT, max_tokens=1)
        await session.submit(1, PROMPT, max_tokens=100)
        await session.has_tokens(1)
        await session.submit(2, PROMPT[::-1], plan=prefill.plan)
        pull = decode_pb2.PrefillPlan(source=holder.source(9))
        await session.submit(3, OTHER_PROMPT, plan=pull)
        await wait_until(lambda: decode_engine.load().num_waiting == 2, "two requests wait")
        await session.has_tokens(1, 10)
        assert decode_engine.load().num_waiting == 2
        assert calls == []
        assert holder.sample("pagemesh:kv_blocks_sent_total", rpc="fetch") == 0
        await session.cancel(1)
        assert tuple((await session.over(2)).token_ids) == expected_tokens(PROMPT[::-1], 8)
        assert tuple((await session.over(3)).token_ids) == expected_tokens(OTHER_PROMPT, 8)
        assert calls == ["Prefill"]
        assert holder.sample("pagemesh:kv_blocks_sent_total", rpc="fetch") == 9


async def test_a_prefill_worker_that_queues_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streams, "STALL_TIMEOUT", 2.0)
    monkeypatch.setattr(servicer, "ALIVE_INTERVAL", 0.05)
    # Room for one prompt, which takes 19 steps.
    engine = FakeEngine(
        num_blocks=12,
        seconds_per_token=0.2,
        scheduler=SchedulerConfig(8, max_num_batched_tokens=8),
    )
    async with (
        running_worker(PREFILL_ROLE, engine) as prefill,
        running_worker(DECODE_ROLE, FakeEngine()) as decode,
        open_channel(prefill.address) as channel,
        RouterSession(decode.address) as session,
    ):
        stub: prefill_pb2_grpc.PrefillAsyncStub = prefill_pb2_grpc.PrefillStub(channel)
        first = stub.Prefill(prefill_request(prefill, OTHER_PROMPT), timeout=20)
        await first.read()
        await wait_until(lambda: not prefill.all_blocks_free(), "the first one has its blocks")
        await session.submit(1, PROMPT[:48], plan=prefill.plan)
        loop = asyncio.get_running_loop()
        asked_at = loop.time()
        await wait_until(lambda: loop.time() > asked_at + 2.5, "longer than a stall may last")
        assert engine.load().num_waiting == 1
        assert decode.sample("pagemesh:remote_prefills_total", outcome="fallback") == 0
        first.cancel()
        assert tuple((await session.over(1)).token_ids) == expected_tokens(PROMPT[:48], 8)
        assert decode.sample("pagemesh:remote_prefills_total", outcome="complete") == 1


async def test_a_prefill_worker_whose_engine_hangs_is_given_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(streams, "STALL_TIMEOUT", 0.2)
    monkeypatch.setattr(servicer, "ALIVE_INTERVAL", 0.02)
    async with (
        # One step of the whole prompt.
        running_worker(PREFILL_ROLE, FakeEngine(seconds_per_token=0.7)) as prefill,
        running_worker(DECODE_ROLE, FakeEngine()) as decode,
        RouterSession(decode.address) as session,
    ):
        received = await session.generate(1, PROMPT, plan=prefill.plan)
        assert tuple(received.token_ids) == expected_tokens(PROMPT, 8)
        failures = "pagemesh:kv_import_failures_total"
        assert decode.sample(failures, rpc="prefill", reason="KV_STALLED") == 1


LONG_PROMPT = [10 + (7 * i) % 900 for i in range(64 * 16)]
NAMES = hash_blocks(root_hash("fake", 16, "float32", b""), LONG_PROMPT, 16)


@pytest.fixture
async def large() -> AsyncIterator[RunningWorker]:
    """A prefill worker that sends 32 MiB for LONG_PROMPT: 32 messages of two blocks."""
    engine = FakeEngine(num_blocks=128, max_model_len=1100, head_dim=2048)
    async with running_worker(PREFILL_ROLE, engine) as running:
        yield running
        await wait_until(running.all_blocks_free, "all blocks free")


def prefill_request(worker: RunningWorker, prompt: list[int]) -> prefill_pb2.PrefillRequest:
    return prefill_pb2.PrefillRequest(
        prompt_token_ids=prompt,
        sampling=types_pb2.SamplingParams(max_tokens=4),
        model_fingerprint="fake",
        kv_layout=worker.worker.info.kv_layout,
    )


def fetch_request(worker: RunningWorker) -> kv_transfer_pb2.FetchRequest:
    return kv_transfer_pb2.FetchRequest(
        block_hashes=NAMES, model_fingerprint="fake", kv_layout=worker.worker.info.kv_layout
    )


def open_stream(rpc: str, channel: grpc.Channel, worker: RunningWorker) -> BulkCall:
    if rpc == "prefill":
        return PREFILL.client(channel)(prefill_request(worker, LONG_PROMPT), timeout=20)
    return FETCH.client(channel)(fetch_request(worker), timeout=20)


@pytest.mark.parametrize("rpc", ["prefill", "fetch"])
async def test_a_reader_that_stops_reading_stops_the_encoding_and_frees_its_blocks_when_it_goes(
    large: RunningWorker, rpc: str
) -> None:
    peers = PeerChannels()
    async with open_channel(large.address) as fast, peers.use(large.address) as slow:
        stub: prefill_pb2_grpc.PrefillAsyncStub = prefill_pb2_grpc.PrefillStub(fast)
        async for _ in stub.Prefill(prefill_request(large, LONG_PROMPT), timeout=20):
            pass
        await wait_until(large.all_blocks_free, "all blocks free")
        stalled = open_stream(rpc, slow, large)
        await asyncio.to_thread(next, iter(stalled))
        # Others are served meanwhile, twice as much as the one who does not read wants.
        for _ in range(2):
            async for _ in stub.Prefill(prefill_request(large, LONG_PROMPT), timeout=20):
                pass
        num_bytes = large.sample("pagemesh:kv_bytes_sent_total", rpc="prefill")
        num_bytes += large.sample("pagemesh:kv_bytes_sent_total", rpc="fetch")
        # What may be under way, a message that is read, one that is written and one behind it.
        assert num_bytes / 2**20 - 3 * 32 <= BULK_WINDOW_BYTES / 2**20 + 6
        assert not large.all_blocks_free()
        stalled.cancel()
        await wait_until(large.all_blocks_free, "all blocks free")
    peers.close()
