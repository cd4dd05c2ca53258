"""Places requests: asks the kvstore who holds the prompt, then has `pagemesh.router.routing` decide."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache

import structlog

from pagemesh.cache.block_hash import BlockHasher
from pagemesh.membership.directory import Directory
from pagemesh.router.decision_metrics import DecisionMetrics
from pagemesh.router.path_metrics import PathMetrics
from pagemesh.router.placer import Placement, Wanted
from pagemesh.router.prefix_metrics import Lookup, PrefixMetrics, PrefixQuery
from pagemesh.router.routing.candidate import Naming, Role, RouteRequest, WorkerFacts
from pagemesh.router.routing.decider import Decider
from pagemesh.router.routing.route import Route
from pagemesh.router.session_pool import SessionPool
from pagemesh.router.workers import Workers
from pagemesh.telemetry.metrics import Metrics
from pagemesh.v1 import types_pb2

_log = structlog.get_logger(__name__)


class Planner:
    """A `Placer` for one model. Belongs to one event loop."""

    def __init__(
        self,
        workers: Workers,
        directory: Directory,
        sessions: SessionPool,
        decider: Decider,
        lookup_timeout: float,
        metrics: Metrics,
    ) -> None:
        self._workers = workers
        self._directory = directory
        self._sessions = sessions
        self._decider = decider
        self._lookup_timeout = lookup_timeout
        self._paths = PathMetrics(metrics)
        self._prefixes = PrefixMetrics(metrics, workers.model_name)
        self._decisions = DecisionMetrics(metrics, workers.model_name, decider.policy)

    async def place(self, wanted: Wanted) -> Placement:
        chains, lookup = dict[Naming, list[bytes]](), Lookup.SKIPPED
        held: dict[str, int] | None = {}
        workers, token_ids = self._workers, wanted.token_ids
        decoders = workers.reachable(Role.DECODE)
        # A single worker gets every prompt, and computes all that it does not hold.
        is_alone = len(decoders) == 1 and not workers.reachable(Role.PREFILL)
        if wanted.is_cacheable and self._decider.names_blocks and not is_alone:
            chains = _name_blocks(token_ids, decoders, wanted.cache_salt)
            if chains and self._decider.uses_index:
                held, lookup = await self._look_up(chains), Lookup.ANSWERED
        if held is None:
            held, lookup = {}, Lookup.FAILED
        # No await from here to `begin`: the next request must see this one's place taken.
        request = RouteRequest(
            model_name=workers.model_name,
            num_prompt_tokens=len(token_ids),
            num_total_tokens=len(token_ids) + wanted.max_tokens,
            block_names=chains,
            excluded_worker_ids=_excluded(wanted),
            is_prefillable=wanted.is_prefillable,
            session=wanted.client_session,
            model_fingerprint=wanted.model_fingerprint,
            arithmetic=wanted.arithmetic,
        )
        facts, closed = workers.facts(), workers.closed()
        if (left := wanted.left_worker) is not None:
            facts = [*(each for each in facts if each.worker_id != left.worker_id), left]
            closed.unreachable.discard(left.worker_id)
            closed.draining.add(left.worker_id)
            held = held | {left.worker_id: (len(token_ids) - 1) // left.layout.block_size}
        with self._decisions.deciding():
            decision = self._decider.decide(facts, held, request, *closed)
        route = decision.route if decision is not None else None
        session = self._sessions.get(route.decode.worker_id) if route is not None else None
        if decision is None or route is None or session is None:
            self._decisions.on_decision(None)
            raise workers.nobody()
        self._decisions.on_decision(decision)
        if route.plan is not None:
            self._paths.on_plan(route.plan)
        query = PrefixQuery(len(token_ids), lookup) if wanted.is_cacheable else None
        flight = self._decider.begin(route, request)
        return Placement(route, session, flight, decision, query)

    def on_kv(self, placement: Placement, outcome: types_pb2.KvOutcome) -> None:
        placement.flight.end_prefill()
        if placement.route.plan is not None:
            self._paths.on_kv(placement.route.plan, outcome)
        if placement.query is not None:
            self._prefixes.on_kv(placement.query, placement.decision, outcome)
            _log.debug(
                "prompt ready",
                worker_id=placement.route.decode.worker_id,
                num_prompt_tokens=placement.query.num_prompt_tokens,
                lookup=placement.query.lookup.value,
                num_available_tokens=placement.decision.num_available_tokens,
                num_captured_tokens=placement.decision.num_captured_tokens,
                num_delivered_tokens=outcome.cached_token_count,
            )

    def on_answer(self, num_tokens: int) -> None:
        self._decider.answers.observe(num_tokens)

    def place_beside(self, placement: Placement) -> Placement:
        route = Route(placement.route.decode)
        flight = self._decider.begin_beside(route)
        return Placement(route, placement.session, flight, placement.decision, query=None)

    async def _look_up(self, chains: Mapping[Naming, Sequence[bytes]]) -> dict[str, int] | None:
        """Leading blocks of the prompt on each worker; None when the kvstore is silent."""
        held: dict[str, int] = {}
        for naming, hashes in chains.items():
            started_at = time.perf_counter()
            found = await self._directory.lookup(
                hashes, naming.model_fingerprint, self._lookup_timeout
            )
            seconds = time.perf_counter() - started_at
            self._decisions.on_lookup(seconds, is_answered=found is not None)
            if found is None:
                return None
            held |= found
        return held


def _excluded(wanted: Wanted) -> frozenset[str]:
    """Workers that must not be used; what has left is of use all the same, and runs nothing anyway."""
    left = wanted.left_worker
    return wanted.excluded_worker_ids - ({left.worker_id} if left is not None else set())


def _name_blocks(
    prompt_token_ids: Sequence[int], workers: Iterable[WorkerFacts], cache_salt: bytes
) -> dict[Naming, list[bytes]]:
    """Names of the prompt's full blocks, for each way in which workers name them.

    Empty for a prompt that fills none.
    """
    chains: dict[Naming, list[bytes]] = {}
    for naming in dict.fromkeys(worker.naming for worker in workers):
        if len(prompt_token_ids) >= naming.block_size:
            chains[naming] = []
            _hasher(naming).extend(chains[naming], prompt_token_ids, salt=cache_salt)
    return chains


@lru_cache(maxsize=64)
def _hasher(naming: Naming) -> BlockHasher:
    return BlockHasher(*naming)
