"""Decides where requests go: the whole judgement of a router, without its connections.

Plain Python over ids and numbers: the router calls it, and so does whoever wants to know what it would do.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from operator import attrgetter
from typing import Final

from pagemesh.config import RoutingConfig
from pagemesh.router.routing.candidate import Candidate, RouteRequest, WorkerFacts
from pagemesh.router.routing.decision import Decision
from pagemesh.router.routing.in_flight import Flight, InFlight
from pagemesh.router.routing.outlook import Outlook
from pagemesh.router.routing.policies import make_policy
from pagemesh.router.routing.prefill_plan import PrefillPlan, plan_prefill
from pagemesh.router.routing.route import Route

_worker_id = attrgetter("worker_id")
_NOBODY: Final[frozenset[str]] = frozenset()


class Decider:
    """decide → begin → end of the flight. `clock` gives seconds.

    What it decided before counts as load from `begin` on, whatever the workers report.
    """

    def __init__(self, config: RoutingConfig, clock: Callable[[], float]) -> None:
        self._policy = make_policy(config)
        self._min_tokens = config.remote_prefill_min_tokens
        self._in_flight = InFlight(clock)

    @property
    def uses_index(self) -> bool:
        """Whether decisions depend on who holds the prompt's prefix."""
        return self._policy.uses_index

    def decide(
        self,
        workers: Iterable[WorkerFacts],
        held: Mapping[str, int],
        request: RouteRequest,
        unreachable: Collection[str] = _NOBODY,
    ) -> Decision | None:
        """Where a request goes; None when no decode worker can run it. Changes nothing.

        `held` gives the leading blocks of the prompt on each worker, by its id, none on those left out;
        `unreachable` the ids of decode workers to which nothing can be sent.
        """
        candidates = [
            Candidate(
                facts,
                facts.worker_id not in unreachable,
                0 if facts.is_degraded else held.get(facts.worker_id, 0),
                self._in_flight.load(facts.worker_id),
            )
            # Routers hear of the workers in different orders, and must judge equals alike.
            for facts in sorted(workers, key=_worker_id)
        ]
        outlook = Outlook(candidates, request)
        choice = self._policy.choose(candidates, outlook)
        if choice is None:
            return None
        decode, plan = choice.decode, None
        if request.is_prefillable:
            plan = plan_prefill(outlook.ways(decode), self._min_tokens)
        num_tokens = request.num_prompt_tokens
        return Decision(
            Route(decode, plan),
            choice.reasons,
            num_available_tokens=_most_held(candidates, num_tokens),
            num_captured_tokens=_most_held(_on_the_way(decode, plan), num_tokens),
        )

    def begin(self, route: Route) -> Flight:
        """A request goes there: it counts until the flight ends."""
        return self._in_flight.begin(route)


def _on_the_way(decode: Candidate, plan: PrefillPlan | None) -> list[Candidate]:
    if plan is None:
        return [decode]
    return [decode, *plan.workers[:1], *([] if plan.source is None else [plan.source])]


def _most_held(candidates: Iterable[Candidate], num_prompt_tokens: int) -> int:
    """Of the prompt's full blocks in front of its last token, which is always computed."""
    return max(_num_servable_tokens(c, num_prompt_tokens) for c in candidates)


def _num_servable_tokens(worker: Candidate, num_prompt_tokens: int) -> int:
    block_size = worker.facts.layout.block_size
    return min(worker.num_held_tokens, (num_prompt_tokens - 1) // block_size * block_size)
