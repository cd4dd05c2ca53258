"""One run: a mesh, its routing and a trace, from the first arrival to the last end."""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

from pagemesh.config import RoutingConfig
from pagemesh.router.routing.candidate import Role
from pagemesh.sim.clock import Clock
from pagemesh.sim.cores import Cores
from pagemesh.sim.index import KvStore
from pagemesh.sim.model import MeshModel
from pagemesh.sim.network import Network
from pagemesh.sim.records import Outcome, Record
from pagemesh.sim.router import Router
from pagemesh.sim.tokens import TokenTimes
from pagemesh.sim.trace import Namer, SharedCache, Trace, block_names
from pagemesh.sim.view import Roster
from pagemesh.sim.worker import Voice, Worker


@dataclass(frozen=True, slots=True)
class MeshSize:
    """What there is of everything, and how it behaves beyond the model."""

    num_decode: int = 8
    num_prefill: int = 0
    num_routers: int = 1
    max_waiting_requests: int = 1024
    """Of each router."""
    request_timeout: float = 600.0
    """Seconds."""
    index_lag: float = 0.005
    """Seconds from a block's end until a lookup finds it."""
    report_delay: float = 0.005
    """Seconds from a report of load until routers know it."""
    mean_seconds_between_failures: float | None = None
    """Of one worker; None for never."""
    restart_seconds: float = 30.0
    """From a failure until the worker is back."""


@dataclass(slots=True)
class Run:
    """What came of it."""

    records: list[Record]
    """One for each request of the trace, in its order."""
    workers: list[Worker]
    token_times: TokenTimes
    seconds: float
    """Simulated, until the last request ended."""
    num_events: int
    load_times: list[float] = field(default_factory=list)
    """When `loads` were taken, in seconds."""
    loads: list[list[int]] = field(default_factory=list)
    """Requests on each worker at those times."""


class Simulation:
    """Wires a mesh and lets a trace into it; see `run`."""

    def __init__(
        self,
        trace: Trace,
        model: MeshModel,
        size: MeshSize,
        routing: RoutingConfig,
        *,
        seed: int = 0,
        sample_seconds: float | None = None,
        namer: Namer | None = None,
        is_decided: Callable[[Record], bool] = lambda record: False,
    ) -> None:
        """`seed` is that of failures; `namer` gives other names than `block_names`.

        `is_decided` is asked with each request that has ended whether all is known that is wanted; if so, the run
        is over, and the other requests have no outcome.
        """
        self.clock = Clock()
        self.model = model
        self.namer = namer or partial(block_names, block_size=model.block_size)
        self._trace = trace
        self._size = size
        self._token_times = TokenTimes()
        roster = Roster(model)
        self.kvstore = KvStore(self.clock, roster, size.index_lag, size.report_delay)
        self.workers = _make_workers(size, model, self.clock, self.kvstore, self._token_times)
        self._routers = [
            Router(
                self,
                roster,
                routing,
                size.max_waiting_requests,
                size.request_timeout,
            )
            for _ in range(size.num_routers)
        ]
        self._shared = SharedCache(model.block_size)
        self._records = [Record(r.num_prompt_tokens, r.num_output_tokens) for r in trace]
        self._next_turns = defaultdict[int, list[int]](list)
        for number, request in enumerate(trace):
            if request.after is not None:
                self._next_turns[request.after].append(number)
        self._num_left = len(trace)
        self._is_decided = is_decided
        self._is_over = not trace
        self._num_taken = 0
        self._faults = random.Random(seed)
        self._sample_seconds = sample_seconds
        self._load_times, self._loads = list[float](), list[list[int]]()

    def run(self) -> Run:
        """Until every request has ended."""
        for worker in self.workers.values():
            self.kvstore.add(worker)
        for number, request in enumerate(self._trace):
            if request.after is None:
                self.clock.at(request.arrival, self._arrival_of(number))
        if self._size.mean_seconds_between_failures is not None:
            for worker in self.workers.values():
                self._await_failure(worker)
        if self._sample_seconds is not None:
            self._sample()
        self.clock.run(lambda: self._is_over)
        assert self._is_over, "a request never ended"
        for worker in self.workers.values():
            worker.settle()
        return Run(
            self._records,
            list(self.workers.values()),
            self._token_times,
            self.clock.now,
            self.clock.num_done,
            self._load_times,
            self._loads,
        )

    def _arrival_of(self, number: int) -> Callable[[], None]:
        return lambda: self._arrive(number)

    def _arrive(self, number: int) -> None:
        request, record = self._trace[number], self._records[number]
        record.arrived_at = self.clock.now
        record.num_shared_tokens = self._shared.visit(request)
        # One router after the other, as a gateway sends them.
        router = self._routers[self._num_taken % len(self._routers)]
        self._num_taken += 1
        router.take(request, record, lambda: self._on_end(number))

    def _on_end(self, number: int) -> None:
        # A list, as conversations may be longer than calls may be deep.
        ended = [number]
        while ended:
            number = ended.pop()
            self._num_left -= 1
            is_answered = self._records[number].outcome is Outcome.COMPLETED
            for following in self._next_turns.get(number, ()):
                if is_answered:
                    self.clock.after(self._trace[following].arrival, self._arrival_of(following))
                else:
                    record = self._records[following]
                    record.outcome = Outcome.ABANDONED
                    record.arrived_at = record.ended_at = self.clock.now
                    ended.append(following)
            if self._num_left == 0 or self._is_decided(self._records[number]):
                self._is_over = True

    def _await_failure(self, worker: Worker) -> None:
        mean = self._size.mean_seconds_between_failures
        assert mean is not None, "only asked when workers fail"
        self.clock.after(self._faults.expovariate(1 / mean), lambda: self._fail(worker))

    def _fail(self, worker: Worker) -> None:
        worker.fail()

        def restart() -> None:
            worker.restart()
            self._await_failure(worker)

        self.clock.after(self._size.restart_seconds, restart)

    def _sample(self) -> None:
        assert self._sample_seconds is not None, "only asked when loads are wanted"
        self._load_times.append(self.clock.now)
        self._loads.append([worker.engine.num_jobs for worker in self.workers.values()])
        self.clock.after(self._sample_seconds, self._sample)


def _make_workers(
    size: MeshSize,
    model: MeshModel,
    clock: Clock,
    voice: Voice,
    token_times: TokenTimes,
) -> dict[str, Worker]:
    """All workers by id."""
    network, cores = Network(clock, model.link), Cores(clock, model.cores)
    kinds = [
        (Role.DECODE, size.num_decode, model.decode),
        (Role.PREFILL, size.num_prefill, model.prefill_worker),
    ]
    workers = [
        Worker(
            f"{role.value}-{number}",
            role,
            clock,
            worker_model,
            model,
            network,
            cores,
            voice,
            token_times,
        )
        for role, count, worker_model in kinds
        for number in range(count)
    ]
    return {worker.worker_id: worker for worker in workers}
