"""What workers tell the kvstore, and it the routers, of how busy they are."""

from __future__ import annotations

import pytest

from pagemesh.core.request import EngineRequest
from pagemesh.membership import publisher
from pagemesh.membership.directory import Directory
from pagemesh.membership.roster import WorkerState
from pagemesh.v1 import types_pb2
from tests.contract.kvstore_harness import (
    PublishingWorker,
    directory_of,
    eventually,
    running_kvstore,
)
from tests.support.ports import free_port
from tests.unit.kvstore.builders import make_worker


def num_waiting(directory: Directory) -> list[int]:
    return [worker.load.waiting_request_count for worker in directory.workers()]


async def test_a_worker_is_known_with_its_facts_and_its_load() -> None:
    async with (
        running_kvstore() as kvstore,
        directory_of(kvstore) as directory,
        PublishingWorker(kvstore, make_worker("a", num_blocks=32)),
    ):
        idle = types_pb2.WorkerLoad(free_block_count=32)
        expected = WorkerState(make_worker("a", num_blocks=32), idle, live=True)
        await eventually(lambda: directory.workers() == (expected,))


async def test_how_long_prompts_take_is_told_with_the_load() -> None:
    async with (
        running_kvstore() as kvstore,
        directory_of(kvstore) as directory,
        PublishingWorker(kvstore, make_worker("a", num_blocks=32)) as worker,
    ):
        await eventually(lambda: len(directory.workers()) == 1)
        assert not directory.workers()[0].load.HasField("prefill_rate")
        await worker.generate(range(20, 60))
        await eventually(lambda: directory.workers()[0].load.HasField("prefill_rate"))
        rate = directory.workers()[0].load.prefill_rate
        assert rate.seconds_per_token > 0
        assert rate.step_token_count == 512
        # Of 40 tokens the first attends to itself, the last to all.
        assert rate.mean_pair_count == 20.5


async def test_that_a_worker_has_nothing_to_do_any_more_is_told_before_the_next_report_is_due(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(publisher, "LOAD_PERIOD", 3600.0)
    port = free_port()
    async with PublishingWorker(f"127.0.0.1:{port}", make_worker("a", num_blocks=32)) as worker:
        # It waits when the worker joins, and leaves no block behind.
        worker.engine.submit(EngineRequest("busy", (20,) * 9, await_kv=True))
        async with (
            running_kvstore(port=port, heartbeat_interval=3600.0) as kvstore,
            directory_of(kvstore) as directory,
        ):
            await eventually(lambda: num_waiting(directory) == [1])
            worker.engine.cancel("busy")
            await eventually(lambda: num_waiting(directory) == [0])
