"""A worker with a real server over a watched engine, behind a link that may fail it."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack

from pagemesh.config import MemberConfig, ModelConfig, SchedulerConfig, ServerConfig, WorkerConfig
from pagemesh.v1 import types_pb2
from pagemesh.worker.server import Role, WorkerServer
from tests.ownership.owned_engine import OwnedEngine
from tests.support.leaks import assert_idle, assert_nothing_leaked
from tests.support.link.relay import Relay
from tests.support.waiting import wait_until

BLOCK_SIZE = 4


class RealWorker:
    """A place in the mesh, and the incarnation that has it now."""

    def __init__(self, role: Role, worker_id: str, num_blocks: int, *, shares: bool) -> None:
        self.link = Relay()
        self.num_kills = 0
        self._role = role
        self._worker_id = worker_id
        self._num_blocks = num_blocks
        self._shares = shares
        self._server: WorkerServer | None = None
        self._dying: list[asyncio.Task[None]] = []

    async def start(self, stack: AsyncExitStack) -> None:
        """Open the link and bring up the first incarnation; the stack closes both."""
        await stack.enter_async_context(self.link)
        stack.push_async_callback(self._close)
        await self._serve()
        self.stale_peer = self.peer

    async def kill(self) -> None:
        """All connections break at once; the next incarnation has the place, but not the epoch."""
        self.link.target = None
        self.link.sever()
        self.link.flow()
        assert self._server is not None
        self._dying.append(asyncio.create_task(_end(self._server, self.engine)))
        self.stale_peer = self.peer
        self.num_kills += 1
        await self._serve()

    async def check_idle(self, within: float) -> None:
        """Nobody asks anything any more: all that was going on has ended."""
        engine = self.engine
        await wait_until(
            lambda: not engine.open_leases(), f"no leases of {self._worker_id}", within
        )
        await assert_idle(engine, within)
        assert not engine.violations, engine.violations

    async def check(self, within: float) -> None:
        """Nobody asks anything any more: nothing is left, here and in those that were killed."""
        await self.check_idle(within)
        value = self._worker.metrics.registry.get_sample_value
        for reason in ("KV_WRONG_HASH", "KV_DUPLICATE", "KV_OUT_OF_RANGE", "KV_WRONG_COUNT"):
            assert not value("pagemesh:kv_rejected_total", {"reason": reason}), reason
        if not self._shares:
            # What is read where it lies may change when the connection to its owner is broken.
            assert not value("pagemesh:kv_rejected_total", {"reason": "KV_WRONG_CHECKSUM"})
        dying, self._dying = self._dying, []
        for task in dying:
            await task

    async def _serve(self) -> None:
        self.engine = OwnedEngine(
            num_blocks=self._num_blocks,
            block_size=BLOCK_SIZE,
            scheduler=SchedulerConfig(4, max_num_batched_tokens=16),
            shares=self._shares,
        )
        config = WorkerConfig(
            model=ModelConfig(model="fake"),
            member=MemberConfig(worker_id=self._worker_id),
            server=ServerConfig(grace_period=0.0),
        )
        self._server = WorkerServer(config, self._role)
        await self._server.start()
        self._worker = worker = await self._server.serve(self.engine)
        self.link.target = self._server.address
        self.peer = types_pb2.PeerWorker(
            worker_id=self._worker_id, address=self.link.address, epoch=worker.info.epoch
        )

    async def _close(self) -> None:
        assert self._server is not None
        await _end(self._server, self.engine)
        await asyncio.gather(*self._dying)


async def _end(server: WorkerServer, engine: OwnedEngine) -> None:
    await server.close()
    assert_nothing_leaked(engine)
    assert not engine.open_leases(), engine.open_leases()
    assert not engine.violations, engine.violations
