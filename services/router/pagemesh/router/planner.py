"""Gathers what a routing decision needs (members, loads, sessions, prefixes) and takes it.

Owns the way from a prompt to its workers. The decision itself is `pagemesh.router.routing`'s.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import NamedTuple

from pagemesh.cache.block_hash import hash_blocks, root_hash
from pagemesh.config import RoutingConfig
from pagemesh.engine.interface import BlockLayout
from pagemesh.errors import UnavailableError
from pagemesh.kvship.layout import layout_from_proto
from pagemesh.membership.directory import Directory
from pagemesh.membership.load_message import is_possible, rate_from_proto
from pagemesh.membership.roster import WorkerState
from pagemesh.router.path_metrics import PathMetrics
from pagemesh.router.routing.candidate import Candidate, Role, RouteRequest
from pagemesh.router.routing.cost import Link
from pagemesh.router.routing.in_flight import Flight, InFlight
from pagemesh.router.routing.policies import make_policy
from pagemesh.router.routing.prefill_plan import plan_prefill
from pagemesh.router.routing.route import Route
from pagemesh.router.session import WorkerSession
from pagemesh.router.session_pool import SessionPool
from pagemesh.telemetry.metrics import ROUTING_WITHOUT_INDEX, Metrics
from pagemesh.v1 import types_pb2

_ROLES = {
    types_pb2.WORKER_ROLE_PREFILL: Role.PREFILL,
    types_pb2.WORKER_ROLE_DECODE: Role.DECODE,
}


class Placement(NamedTuple):
    """Where a request goes, already counted there until `flight.end()`."""

    route: Route
    session: WorkerSession
    flight: Flight


class Planner:
    """Places requests for one model. Belongs to one event loop."""

    def __init__(
        self,
        model_name: str,
        directory: Directory,
        sessions: SessionPool,
        config: RoutingConfig,
        metrics: Metrics,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`clock` gives seconds."""
        self._model_name = model_name
        self._directory = directory
        self._sessions = sessions
        self._config = config
        self._policy = make_policy(config.policy)
        self._in_flight = InFlight(clock)
        self._paths = PathMetrics(metrics)
        self._without_index = metrics.counter(ROUTING_WITHOUT_INDEX)

    def workers(self, role: Role) -> list[Candidate]:
        """The model's workers of a role that can be reached now."""
        return [
            candidate
            for candidate in self._candidates({})
            if candidate.role is role
            and candidate.reachable
            and candidate.model_name == self._model_name
        ]

    def max_model_len(self) -> int:
        """Longest context that a decode worker offers; UnavailableError when there is none."""
        decoders = self.workers(Role.DECODE)
        if not decoders:
            raise self._nobody()
        return max(candidate.max_model_len for candidate in decoders)

    def reported_load(self) -> tuple[int, int]:
        """Requests that the model's decode workers last said they run, and those that wait there."""
        loads = [
            worker.load
            for worker in self._directory.workers()
            if _ROLES.get(worker.role) is Role.DECODE and worker.info.model_name == self._model_name
        ]
        return (
            sum(load.running_request_count for load in loads),
            sum(load.waiting_request_count for load in loads),
        )

    async def place(
        self,
        prompt_token_ids: Sequence[int],
        max_tokens: int,
        excluded_worker_ids: frozenset[str] = frozenset(),
        *,
        is_prefillable: bool = True,
    ) -> Placement:
        """Choose workers for a prompt; raises UnavailableError when no decode worker can take it.

        One that is not `is_prefillable` has to be computed where it runs.
        """
        chains: dict[tuple[str, BlockLayout], list[bytes]] = {}
        held: dict[str, int] = {}
        if self._policy.uses_index and self._has_choice():
            chains = self._name_blocks(prompt_token_ids)
            held = await self._look_up(chains)
        # No await from here to `begin`: the next request must see this one's place taken.
        first_hashes = [hashes[0] for hashes in chains.values() if hashes]
        request = RouteRequest(
            model_name=self._model_name,
            num_prompt_tokens=len(prompt_token_ids),
            num_total_tokens=len(prompt_token_ids) + max_tokens,
            first_block_hash=first_hashes[0] if first_hashes else b"",
            excluded_worker_ids=excluded_worker_ids,
            is_prefillable=is_prefillable,
        )
        candidates = self._candidates(held)
        decode = self._policy.choose(candidates, request)
        session = self._sessions.get(decode.worker_id) if decode is not None else None
        if decode is None or session is None:
            raise self._nobody()
        plan = None
        if is_prefillable:
            min_tokens = self._config.remote_prefill_min_tokens
            plan = plan_prefill(decode, candidates, request, min_tokens)
            self._paths.on_plan(plan)
        route = Route(decode, plan)
        return Placement(route, session, self._in_flight.begin(route))

    def on_kv(self, placement: Placement, outcome: types_pb2.KvOutcome) -> None:
        """The first token of a placed request and its prompt's KV are there."""
        placement.flight.end_prefill()
        if placement.route.plan is not None:
            self._paths.on_kv(placement.route.plan, outcome)

    def place_beside(self, placement: Placement) -> Placement:
        """Place a request where another one has, or is about to have, the KV of its prompt."""
        route = Route(placement.route.decode)
        return Placement(route, placement.session, self._in_flight.begin(route))

    def _has_choice(self) -> bool:
        """Whether it matters who holds what: a single worker gets every prompt, and computes it all."""
        return len(self.workers(Role.DECODE)) > 1 or bool(self.workers(Role.PREFILL))

    def _nobody(self) -> UnavailableError:
        return UnavailableError(
            f"no decode worker for the model {self._model_name!r} can be reached at the moment",
            reason="NO_WORKER",
        )

    def _name_blocks(
        self, prompt_token_ids: Sequence[int]
    ) -> dict[tuple[str, BlockLayout], list[bytes]]:
        """Names of the prompt's blocks, for each kind of KV that the model's workers have."""
        kinds = {(c.model_fingerprint, c.layout) for c in self.workers(Role.DECODE)}
        return {
            (fingerprint, layout): hash_blocks(
                _root(fingerprint, layout.block_size, layout.dtype),
                prompt_token_ids,
                layout.block_size,
            )
            for fingerprint, layout in kinds
        }

    async def _look_up(self, chains: dict[tuple[str, BlockLayout], list[bytes]]) -> dict[str, int]:
        """Leading blocks of the prompt on each worker; nothing when the kvstore is silent."""
        held: dict[str, int] = {}
        for (fingerprint, _), hashes in chains.items():
            if not hashes:
                continue
            found = await self._directory.lookup(hashes, fingerprint, self._config.lookup_timeout)
            if found is None:
                self._without_index.inc()
                return {}
            held |= found
        return held

    def _candidates(self, held: dict[str, int]) -> list[Candidate]:
        return [
            self._candidate(worker, held.get(worker.worker_id, 0))
            for worker in self._directory.workers()
            if worker.role in _ROLES
        ]

    def _candidate(self, worker: WorkerState, num_held_blocks: int) -> Candidate:
        session = self._sessions.get(worker.worker_id)
        num_reported = worker.load.running_request_count + worker.load.waiting_request_count
        role = _ROLES[worker.role]
        return Candidate(
            worker_id=worker.worker_id,
            role=role,
            address=worker.address,
            epoch=worker.info.epoch,
            model_name=worker.info.model_name,
            model_fingerprint=worker.info.model_fingerprint,
            layout=layout_from_proto(worker.info.kv_layout),
            max_model_len=worker.info.max_model_len,
            max_num_seqs=max(1, worker.info.max_num_seqs),
            # A prefill worker that the kvstore cannot confirm costs a retry at worst; the decode
            # worker then computes the prompt itself.
            reachable=role is Role.PREFILL or (session is not None and session.is_live),
            # The report includes this router's requests, but not those it has not seen yet.
            num_requests=max(num_reported, self._in_flight.count(worker.worker_id)),
            num_held_blocks=num_held_blocks,
            num_running=worker.load.running_request_count,
            prefill_rate=rate_from_proto(worker.load.prefill_rate),
            num_pending_tokens=worker.load.pending_prefill_token_count,
            own_queue_seconds=self._in_flight.queue_seconds(worker.worker_id),
            links={
                link.worker_id: Link(link.bytes_per_second, link.latency_seconds)
                for link in worker.load.links
                if is_possible((link.bytes_per_second, link.latency_seconds))
            },
            own_transfers=self._in_flight.transfers(worker.worker_id),
        )


@lru_cache(maxsize=64)
def _root(model_fingerprint: str, block_size: int, kv_dtype: str) -> bytes:
    return root_hash(model_fingerprint, block_size, kv_dtype)
