"""The kvstore as the simulation has it: a real index, told of blocks as late as a real one."""

from __future__ import annotations

from collections.abc import Coroutine, Sequence
from typing import Any, TypeVar

from pagemesh.cache.block_pool import CacheEvents
from pagemesh.core.load import EngineLoad
from pagemesh.kvstore.memory_index import MemoryIndex
from pagemesh.router.routing.cost import Link
from pagemesh.sim.clock import Clock
from pagemesh.sim.view import Roster
from pagemesh.sim.worker import Worker

_Result = TypeVar("_Result")


class KvStore:
    """Applies what workers say to index and roster, each after its delay."""

    def __init__(self, clock: Clock, roster: Roster, index_lag: float, report_delay: float) -> None:
        self._clock = clock
        self._roster = roster
        self._index_lag = index_lag
        self._report_delay = report_delay
        self.index = MemoryIndex()

    def add(self, worker: Worker) -> None:
        """A worker registers."""
        self._roster.join(worker.worker_id, worker.role, worker.model, worker.epoch)
        _finish(self.index.add_worker(worker.worker_id, worker.engine.tables.pool.num_blocks))

    def lookup(self, names: Sequence[bytes]) -> dict[str, int]:
        """Leading blocks on each worker, as far as is known."""
        return _finish(self.index.lookup(names))

    def on_worker(self, worker: Worker, *, is_alive: bool) -> None:
        """See `Voice`: sessions and streams break at once, everywhere."""
        if is_alive:
            self.add(worker)
        else:
            self._roster.leave(worker.worker_id, worker.epoch)
            _finish(self.index.drop_worker(worker.worker_id))

    def on_load(self, worker: Worker, load: EngineLoad, links: dict[str, Link]) -> None:
        epoch, worker_id = worker.epoch, worker.worker_id

        def apply() -> None:
            if self._roster.epoch(worker_id) == epoch:
                self._roster.report(worker_id, load, links, self._clock.now)

        self._clock.after(self._report_delay, apply)

    def on_blocks(self, worker: Worker, events: CacheEvents) -> None:
        """See `Voice`: removals first, as the publisher sends them."""
        epoch, worker_id = worker.epoch, worker.worker_id

        def apply() -> None:
            if self._roster.epoch(worker_id) == epoch:
                _finish(self.index.remove(worker_id, events.removed))
                fits = _finish(self.index.store(worker_id, events.stored))
                assert fits, "a worker has no more blocks than it said"

        self._clock.after(self._index_lag, apply)


def _finish(call: Coroutine[Any, Any, _Result]) -> _Result:
    """The result of a coroutine that waits for nothing but its turn, as those of `MemoryIndex`."""
    try:
        while True:
            call.send(None)
    except StopIteration as end:
        result: _Result = end.value
        return result
