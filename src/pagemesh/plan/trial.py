"""One deployment against the traffic, in the simulator: whether enough requests are good, and what else missed."""

from __future__ import annotations

import gc
import sys
import time
from collections import Counter
from dataclasses import dataclass
from typing import Final

from pagemesh.config import RoutingConfig
from pagemesh.plan.search import Size
from pagemesh.plan.surroundings import Traffic, num_routers
from pagemesh.sim.model import MeshModel
from pagemesh.sim.records import Outcome, Record
from pagemesh.sim.simulation import MeshSize, Simulation
from pagemesh.sim.summary import percentile
from pagemesh.sim.trace import Trace
from pagemesh.workload.slo import Slo

_NEVER_REFUSED: Final = 1_000_000_000
"""Requests that a router takes: those that come too fast wait, and are late."""


class OutOfTimeError(Exception):
    """--plan-timeout is over."""


@dataclass(frozen=True, slots=True)
class Goal:
    """What a deployment must do."""

    slo: Slo
    share: float
    """Of all requests that must be good."""


@dataclass(frozen=True, slots=True)
class Trial:
    """What came of one deployment."""

    size: Size
    is_enough: bool
    good_share: float
    """Of all requests; where it was cut short, no more than this."""
    is_cut: bool
    """Whether it ended as soon as too many had missed."""
    misses: dict[str, int]
    """Requests that exceeded each limit, or ended otherwise than completed."""
    ttft: float | None
    tpot: float | None
    e2el: float | None
    """Seconds that the wanted share of all completed requests kept to."""


class Trials:
    """Tries deployments, each once."""

    def __init__(
        self,
        trace: Trace,
        model: MeshModel,
        routing: RoutingConfig,
        traffic: Traffic,
        goal: Goal,
        *,
        seed: int,
        ends_at: float,
    ) -> None:
        """`ends_at` is a time of `time.monotonic`, behind which `OutOfTimeError` is raised."""
        self._trace = trace
        self._model = model
        self._routing = routing
        self._traffic = traffic
        self._goal = goal
        self._seed = seed
        self._ends_at = ends_at
        self.made: dict[Size, Trial] = {}
        """In order."""

    def passes(self, size: Size) -> bool:
        """Whether it is enough; False as soon as too many requests have missed."""
        if size not in self.made:
            started = time.perf_counter()
            trial = self.made[size] = self.run(size, self._model, may_cut=True)
            _tell(trial, time.perf_counter() - started)
        return self.made[size].is_enough

    def run(self, size: Size, model: MeshModel, *, may_cut: bool) -> Trial:
        """With another model."""
        return self._run(self._trace, size, model, may_cut=may_cut)

    def alone(self, trace: Trace, size: Size) -> Trial:
        """Of another trace, such as one whose requests never meet."""
        return self._run(trace, size, self._model, may_cut=False)

    def _run(self, trace: Trace, size: Size, model: MeshModel, *, may_cut: bool) -> Trial:
        # What the run before has left, in cycles, may be gigabytes.
        gc.collect()
        goal, num_missed = self._goal, 0
        most_missed = int((1 - goal.share) * len(trace) + 1e-9)

        def is_decided(record: Record) -> bool:
            nonlocal num_missed
            if time.monotonic() > self._ends_at:
                raise OutOfTimeError
            num_missed += bool(misses_of(record, goal.slo))
            return may_cut and num_missed > most_missed

        mesh = MeshSize(
            num_decode=size.decode,
            num_prefill=size.prefill,
            num_routers=num_routers(self._traffic, size.total),
            max_waiting_requests=_NEVER_REFUSED,
        )
        simulation = Simulation(
            trace, model, mesh, self._routing, seed=self._seed, is_decided=is_decided
        )
        return _judge(size, simulation.run().records, goal)


def misses_of(record: Record, slo: Slo) -> list[str]:
    """Names of the limits that an ended request exceeded, or how else it ended."""
    if record.outcome is not Outcome.COMPLETED:
        return [record.outcome.value] if record.outcome else []
    ttft, e2el = record.ttft, record.ended_at - record.arrived_at
    assert ttft is not None, "it completed"
    times = {"ttft": ttft, "tpot": record.tpot, "e2el": e2el}
    return [name for name, seconds in times.items() if seconds > getattr(slo, name)]


def _judge(size: Size, records: list[Record], goal: Goal) -> Trial:
    terms = [misses_of(record, goal.slo) for record in records]
    is_cut = any(record.outcome is None for record in records)
    num_good = len(records) - sum(map(bool, terms))
    done = [record for record in records if record.outcome is Outcome.COMPLETED]
    ttfts = sorted(record.ttft or 0.0 for record in done)
    tpots = sorted(record.tpot for record in done)
    e2els = sorted(record.ended_at - record.arrived_at for record in done)
    return Trial(
        size=size,
        is_enough=num_good >= goal.share * len(records) - 1e-9,
        good_share=num_good / len(records),
        is_cut=is_cut,
        misses=dict(Counter(term for each in terms for term in each).most_common()),
        ttft=percentile(ttfts, goal.share),
        tpot=percentile(tpots, goal.share),
        e2el=percentile(e2els, goal.share),
    )


def _tell(trial: Trial, seconds: float) -> None:
    share = f"{'less than ' if trial.is_cut else ''}{trial.good_share:.1%} good"
    why = "" if trial.is_enough else f", missed: {', '.join(trial.misses)}"
    print(f"{trial.size}: {share}{why}; simulated in {seconds:.1f} s", file=sys.stderr)
