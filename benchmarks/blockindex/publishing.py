"""Workers that hold blocks and do nothing else, in a process of their own: real publishers over plain caches."""

from __future__ import annotations

import asyncio
import logging
import pickle
from collections.abc import Sequence
from multiprocessing.connection import Connection
from typing import cast

import structlog
from blockindex.contents import new_chain
from blockindex.processes import make_worker

from pagemesh.cache.block_hash import CacheDigest, xor_hashes
from pagemesh.core.engine import Engine, StepOutput
from pagemesh.core.load import EngineLoad
from pagemesh.membership.publisher import Publisher
from pagemesh.v1 import types_pb2

ANSWER_S = 0.01
"""Until an engine gives the snapshot that it is asked for."""


class _Cache:
    """An engine that has nothing but block hashes."""

    def __init__(self, kvstore: str, info: types_pb2.WorkerInfo, names: Sequence[bytes]) -> None:
        self.names = list(names)
        self._digest = CacheDigest(len(names), xor_hashes(names))
        self._pack_snapshot()
        self.publisher = Publisher(kvstore, info, cast("Engine", self), links=tuple)

    def store(self) -> None:
        """One more block, as a step of an engine leaves it."""
        new = new_chain(1)
        self.names += new
        num_blocks, names_xor = self._digest
        self._digest = CacheDigest(num_blocks + 1, names_xor ^ xor_hashes(new))
        self._pack_snapshot()
        self.publisher.on_step(StepOutput(stored_block_hashes=new, cache_digest=self._digest))

    def publish_snapshot(self) -> None:
        """As an engine does, in its next step."""
        asyncio.get_running_loop().call_later(ANSWER_S, self._deliver)

    def load(self) -> EngineLoad:
        """Nothing to do."""
        return EngineLoad()

    def _pack_snapshot(self) -> None:
        """As it comes through the pipe from an engine's own process."""
        step = StepOutput(cache_snapshot=self.names, cache_digest=self._digest)
        self._snapshot = pickle.dumps(step)

    def _deliver(self) -> None:
        self.publisher.on_step(pickle.loads(self._snapshot))


def publish(parent: Connection, kvstore: str, num_workers: int, num_blocks: int) -> None:
    """Publish until the parent closes the pipe; restart each worker that it names by number, and say so; for None
    have each worker store a block.
    """
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR))
    asyncio.run(_publish(parent, kvstore, num_workers, num_blocks))


async def _publish(parent: Connection, kvstore: str, num_workers: int, num_blocks: int) -> None:
    def start(number: int, epoch: int, names: Sequence[bytes]) -> _Cache:
        cache = _Cache(kvstore, make_worker(number, 2 * num_blocks, epoch), names)
        cache.publisher.start()
        return cache

    caches = [start(number, 1, new_chain(num_blocks)) for number in range(num_workers)]
    epoch = 1
    try:
        while True:
            number = await asyncio.to_thread(parent.recv)
            if number is None:
                for cache in caches:
                    cache.store()
                parent.send("stored")
                continue
            epoch += 1
            await caches[number].publisher.close()
            parent.send("gone")
            await asyncio.to_thread(parent.recv)
            caches[number] = start(number, epoch, caches[number].names)
            parent.send("started")
    except (EOFError, ConnectionResetError):
        await asyncio.gather(*(cache.publisher.close() for cache in caches))
