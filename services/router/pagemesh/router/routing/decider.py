"""Decides where requests go: the whole judgement of a router, without its connections.

Plain Python over ids and numbers: the router calls it, and so does whoever wants to know what it would do.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import replace
from functools import partial
from operator import attrgetter
from typing import Final

from pagemesh.config import RoutingConfig
from pagemesh.router.routing.candidate import Candidate, Role, RouteRequest, WorkerFacts
from pagemesh.router.routing.coming_blocks import ComingBlocks
from pagemesh.router.routing.crowds import Crowds
from pagemesh.router.routing.decision import Decision
from pagemesh.router.routing.in_flight import Flight, InFlight
from pagemesh.router.routing.outlook import Outlook
from pagemesh.router.routing.policies import make_policy
from pagemesh.router.routing.prefill_plan import plan_prefill
from pagemesh.router.routing.route import Route
from pagemesh.router.routing.seats import Load, SeatCount, Seats

_worker_id = attrgetter("worker_id")
_NOBODY: Final[frozenset[str]] = frozenset()

_PRIOR_LENGTH: Final = 256.0
"""Expected tokens of an answer before any has ended: about what chats have."""

_LENGTH_MEMORY: Final = 0.98
"""What a measured length still counts when the next answer ends: about the last fifty decide."""


class AnswerLength:
    """How long answers are, so that a worker is chosen that has room for one more: the decayed mean of those that ended,
    as the workers' own schedulers keep it."""

    def __init__(self) -> None:
        self._mean = _PRIOR_LENGTH

    def observe(self, num_tokens: int) -> None:
        """An answer ended by itself, with so many tokens."""
        self._mean = _LENGTH_MEMORY * self._mean + (1 - _LENGTH_MEMORY) * num_tokens

    def num_tokens(self, max_tokens: int) -> int:
        """Tokens that are to be expected of an answer that may have so many."""
        return min(round(self._mean), max_tokens)


class Decider:
    """decide → begin → end of the flight. `clock` gives seconds.

    What it decided before counts from `begin` on, whatever workers and index say: as load, and as blocks that
    are about to be there.
    """

    def __init__(self, config: RoutingConfig, clock: Callable[[], float]) -> None:
        self.policy: str = config.policy
        self._policy = make_policy(config)
        self._min_tokens = config.remote_prefill_min_tokens
        self._in_flight = InFlight(clock)
        self._coming = ComingBlocks(clock)
        self._crowds = Crowds()
        self.answers = AnswerLength()
        self._seats = Seats(clock)
        self._num_workers = 0

    @property
    def uses_index(self) -> bool:
        """Whether decisions depend on who holds the prompt's prefix."""
        return self._policy.uses_index

    @property
    def names_blocks(self) -> bool:
        """Whether decisions depend on the names of the prompt's blocks."""
        return self._policy.uses_index or self._policy.names_blocks

    def decide(
        self,
        workers: Iterable[WorkerFacts],
        held: Mapping[str, int],
        request: RouteRequest,
        unreachable: Collection[str] = _NOBODY,
        draining: Collection[str] = _NOBODY,
    ) -> Decision | None:
        """Where a request goes; None when no decode worker can run it. Only whose turn it is changes.

        `held` gives the leading blocks of the prompt on each worker, by its id, none on those left out;
        `unreachable` the ids of decode workers to which nothing can be sent, `draining` those of workers that
        take no more requests.
        """
        candidates = self._candidates(workers, held, request, unreachable, draining)
        self._num_workers = sum(c.facts.role is Role.DECODE for c in candidates)
        places = self._crowds.places(request.block_names, self._num_workers)
        request = replace(
            request,
            num_growth_tokens=self.answers.num_tokens(request.num_output_tokens),
            affinity={naming: place.group for naming, place in places.items()},
            num_crowd_blocks=min((p.num_crowd_blocks for p in places.values()), default=0),
        )
        outlook = Outlook(candidates, request, self._min_tokens)
        choice = self._policy.choose(candidates, outlook)
        if choice is None:
            return None
        decode, plan = choice.decode, None
        if request.is_prefillable:
            plan = plan_prefill(outlook.ways(decode), self._min_tokens)
        num_tokens = request.num_prompt_tokens
        route = Route(decode, plan)
        return Decision(
            route,
            choice.reasons,
            num_available_tokens=_most_held(candidates, num_tokens),
            num_captured_tokens=_most_held(route.on_the_way, num_tokens),
        )

    def begin(self, route: Route, request: RouteRequest) -> Flight:
        """A request goes there: it counts until the flight ends."""
        computing = route.prefill or route.decode
        self._crowds.add(request.block_names, self._num_workers)
        note = None
        if computing.facts.caches_prefixes and not computing.facts.is_degraded:
            names = request.block_names.get(computing.facts.naming, ())
            note = self._coming.add(computing.worker_id, names[computing.num_held_blocks :])
        num_tokens = request.num_prompt_tokens + self.answers.num_tokens(request.num_output_tokens)
        return self._in_flight.begin(
            route,
            route.decode.num_missing_blocks(num_tokens),
            None if note is None else partial(self._coming.settle, note),
        )

    def begin_beside(self, route: Route) -> Flight:
        """One more answer to a prompt goes where another one is, and shares its KV."""
        return self._in_flight.begin(route)

    def seats(
        self, decoders: Iterable[WorkerFacts], prefillers: Iterable[WorkerFacts]
    ) -> SeatCount:
        """How many requests these workers can work on, which take some."""
        return self._seats.count(self._loads(decoders), self._loads(prefillers))

    def _loads(self, workers: Iterable[WorkerFacts]) -> list[Load]:
        load = self._in_flight.load
        return [Load(facts, load(facts.worker_id, facts.reported_at)) for facts in workers]

    def _candidates(
        self,
        workers: Iterable[WorkerFacts],
        held: Mapping[str, int],
        request: RouteRequest,
        unreachable: Collection[str],
        draining: Collection[str],
    ) -> list[Candidate]:
        # In whatever order routers came to know of workers, equal ones are told apart in the same way.
        workers = sorted(workers, key=_worker_id)
        known = [facts for facts in workers if facts.worker_id in held and not facts.is_degraded]
        there = {facts.worker_id: held[facts.worker_id] for facts in known}
        coming = self._coming.extend(request.block_names.values(), there)
        load = self._in_flight.load
        return [
            Candidate(
                facts,
                worker_id not in unreachable,
                worker_id in draining,
                there.get(worker_id, 0),
                coming.get(worker_id, 0),
                load(worker_id, facts.reported_at),
            )
            for worker_id, facts in zip(map(_worker_id, workers), workers, strict=True)
        ]


def num_servable_tokens(num_held_blocks: int, num_prompt_tokens: int, block_size: int) -> int:
    """Tokens of a prompt that leading blocks of it serve: its last token is always computed."""
    return min(num_held_blocks * block_size, num_prompt_tokens - 1)


def _most_held(candidates: Iterable[Candidate], num_prompt_tokens: int) -> int:
    return max(
        (
            num_servable_tokens(c.num_held_blocks, num_prompt_tokens, c.facts.layout.block_size)
            for c in candidates
            if c.num_held_blocks
        ),
        default=0,
    )
