"""A modelled worker: an engine, its voice in the mesh, and what it has measured of its links."""

from __future__ import annotations

from typing import Final, Protocol

from pagemesh.cache.block_pool import CacheEvents
from pagemesh.core.load import EngineLoad
from pagemesh.kv_transfer.links import LinkMeter
from pagemesh.router.routing.candidate import Role
from pagemesh.router.routing.cost import Link
from pagemesh.sim.clock import Clock
from pagemesh.sim.cores import Cores
from pagemesh.sim.engine import Engine
from pagemesh.sim.model import MeshModel, WorkerModel
from pagemesh.sim.network import Network
from pagemesh.sim.tokens import TokenTimes

LOAD_PERIOD: Final = 0.1
"""Least seconds between two reports of a changed load, as `membership.publisher` has it."""


class WorkerUser(Protocol):
    """Somebody who has a job or blocks on a worker."""

    def on_worker_lost(self, worker: Worker) -> None:
        """The worker is gone, and all that was there."""
        ...


class Voice(Protocol):
    """Takes what a worker tells the kvstore."""

    def on_worker(self, worker: Worker, *, is_alive: bool) -> None:
        """It registered, or its streams broke."""
        ...

    def on_load(self, worker: Worker, load: EngineLoad, links: dict[str, Link]) -> None:
        """It reported its load."""
        ...

    def on_blocks(self, worker: Worker, events: CacheEvents) -> None:
        """Its cache changed."""
        ...


class Worker:
    """One worker and its present incarnation."""

    def __init__(
        self,
        worker_id: str,
        role: Role,
        clock: Clock,
        model: WorkerModel,
        mesh: MeshModel,
        network: Network,
        cores: Cores,
        voice: Voice,
        token_times: TokenTimes,
    ) -> None:
        self.worker_id = worker_id
        self.role = role
        self.clock = clock
        self.model = model
        self.network = network
        self.epoch = 1
        self.is_alive = True
        self.users: dict[WorkerUser, None] = {}
        """Who has something here, in order of coming."""
        self.meter = LinkMeter(lambda sender, speed: None, clock.time)
        self.num_assigned = 0
        """Requests of clients that were sent here."""
        self.busy_seconds = 0.0
        self.num_computed_tokens = 0
        self.num_preemptions = 0
        """Of incarnations that are gone, like the two in front of it; see `settle`."""
        self._mesh = mesh
        self._cores = cores
        self._voice = voice
        self._token_times = token_times
        # Looked up here once: tokens come by the million.
        self._has_token_times = role is Role.DECODE
        self._reported_load = EngineLoad()
        self._reported_at = -LOAD_PERIOD
        self._report_is_due = False
        self.engine = self._make_engine()

    def on_tokens(self, num_gaps: int, seconds: float) -> None:
        if self._has_token_times:
            self._token_times.add(num_gaps, seconds)

    def on_change(self) -> None:
        events = self.engine.drain_events()
        if events.stored or events.removed:
            self._voice.on_blocks(self, events)
        if not self._report_is_due:
            self._report_is_due = True
            self.clock.at(self._reported_at + LOAD_PERIOD, self._report)

    def measure_link(self, sender: Worker, num_bytes: float, seconds: float) -> None:
        """A stream from another worker is all here, which sent for so many seconds."""
        self.meter.learn(sender.worker_id, self.network.latency_seconds, int(num_bytes), seconds)

    def fail(self) -> None:
        """The process is gone: its jobs, blocks and streams with it."""
        self.settle()
        self.is_alive = False
        self.epoch += 1
        self.engine.kill()
        self.network.lose(self.worker_id)
        self._voice.on_worker(self, is_alive=False)
        users, self.users = self.users, {}
        for user in users:
            user.on_worker_lost(self)

    def restart(self) -> None:
        """A new incarnation, with an empty cache and nothing measured."""
        self.engine = self._make_engine()
        self.meter = LinkMeter(lambda sender, speed: None, self.clock.time)
        self._reported_load = EngineLoad()
        self.is_alive = True
        self._voice.on_worker(self, is_alive=True)

    def settle(self) -> None:
        """Add what the engine has done to the worker's sums; call it once for each incarnation."""
        self.busy_seconds += self.engine.meter.busy_seconds
        self.num_computed_tokens += self.engine.meter.num_computed_tokens
        self.num_preemptions += self.engine.num_preemptions

    def _make_engine(self) -> Engine:
        measured = self._mesh.measured.get(self.worker_id)
        return Engine(self.clock, self.model, self._mesh.block_size, self, self._cores, measured)

    def _report(self) -> None:
        self._report_is_due = False
        self._reported_at = self.clock.now
        load = self.engine.load()
        if self.is_alive and load != self._reported_load:
            self._reported_load = load
            speeds = self.meter.speeds()
            links = {s.worker_id: Link(s.bytes_per_second, s.latency_seconds) for s in speeds}
            self._voice.on_load(self, load, links)
