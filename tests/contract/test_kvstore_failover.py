"""Workers and routers that know several addresses: they move on to the next kvstore, and stay there."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from typing import Any

import pytest
import pytest_asyncio

from pagemesh.kvstore.servicer import KvStoreServicer
from pagemesh.membership.directory import Directory
from pagemesh.membership.roster import MemberChange
from tests.contract.kvstore_harness import (
    PublishingWorker,
    connected,
    eventually,
    index_becomes,
    running_kvstore,
)
from tests.unit.kvstore.builders import make_block, make_worker

FINGERPRINT = "model-a"


@pytest_asyncio.fixture
async def first() -> AsyncIterator[AsyncExitStack]:
    """The life of the replica that is used first."""
    async with AsyncExitStack() as life:
        yield life


def live_ids(directory: Directory) -> list[str]:
    return sorted(worker.worker_id for worker in directory.workers() if worker.live)


async def test_all_move_to_the_next_replica_and_no_worker_is_lost_on_the_way(
    first: AsyncExitStack,
) -> None:
    one = await first.enter_async_context(running_kvstore())
    async with running_kvstore() as two, connected(two) as stub:
        both = f"{one},{two}"
        directory = Directory(both, first=0)
        async with PublishingWorker(both, make_worker("a", num_blocks=32), first=0) as worker:
            heard: list[MemberChange] = []
            await directory.start()
            directory.subscribe(lambda change, _: heard.append(change))
            await worker.generate(range(20, 25))
            await eventually(lambda: live_ids(directory) == ["a"])
            await first.aclose()
            await index_becomes(stub, {"a": worker.cached})
            await eventually(lambda: live_ids(directory) == ["a"])
            assert directory.kvstore == two
            assert heard == [MemberChange.JOINED]
            (block,) = worker.cached
            assert await directory.lookup([block], FINGERPRINT, timeout=5.0) == {"a": 1}
            # Back again, it is nobody's first choice any more.
            async with running_kvstore(port=int(one.rpartition(":")[2])):
                await worker.generate(range(100, 120))
                await index_becomes(stub, {"a": worker.cached})
                assert (directory.kvstore, live_ids(directory)) == (two, ["a"])
        await directory.close()


async def test_lookups_under_way_are_answered_when_the_router_leaves_their_replica(
    first: AsyncExitStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    honest = KvStoreServicer.Lookup
    asked, answer = asyncio.Event(), asyncio.Event()

    async def lookup(self: Any, request: Any, context: Any) -> Any:
        asked.set()
        await answer.wait()
        return await honest(self, request, context)

    monkeypatch.setattr(KvStoreServicer, "Lookup", lookup)
    one = await first.enter_async_context(running_kvstore())
    async with running_kvstore() as two:
        directory = Directory(f"{one},{two}", first=0)
        await directory.start()
        looking = asyncio.create_task(directory.lookup([make_block(1)], FINGERPRINT, timeout=30.0))
        await asked.wait()
        closing = asyncio.create_task(first.aclose())
        await eventually(lambda: directory.kvstore == two)
        answer.set()
        assert await looking == {}
        await closing
        await directory.close()
