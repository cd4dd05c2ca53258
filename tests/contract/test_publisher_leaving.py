"""A worker that leaves is gone, whatever else happens at that moment."""

from __future__ import annotations

import asyncio

from pagemesh.core.load import EngineLoad
from pagemesh.membership.publisher import Publisher
from tests.contract.kvstore_harness import eventually, running_kvstore
from tests.fakes.engine import FakeEngine
from tests.unit.kvstore.builders import make_worker


async def test_a_worker_leaves_though_its_stream_breaks_at_the_same_moment() -> None:
    leaving: list[asyncio.Task[None]] = []

    class BreakingEngine(FakeEngine):
        """Has the publisher closed when it asks for the load, and breaks the stream by its answer."""

        def load(self) -> EngineLoad:
            leaving.append(asyncio.create_task(publisher.close()))
            raise RuntimeError("the stream breaks")

    engine = BreakingEngine(num_blocks=8, block_size=4)
    async with running_kvstore() as kvstore:
        publisher = Publisher(kvstore, make_worker("a", num_blocks=8), engine, links=tuple)
        publisher.start()
        await eventually(lambda: bool(leaving))
        await leaving[0]
        assert "publisher" not in {task.get_name() for task in asyncio.all_tasks()}
