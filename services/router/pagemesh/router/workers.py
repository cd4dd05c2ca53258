"""The workers that the router's model has at the moment, as they told the kvstore of themselves.

Translates their messages into what routing sees of them. Decides nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

from pagemesh.errors import UnavailableError
from pagemesh.membership.directory import Directory
from pagemesh.membership.roster import WorkerState
from pagemesh.messages import is_possible, layout_from_proto, rate_from_proto
from pagemesh.router.parity import Parity
from pagemesh.router.roles import ROLES
from pagemesh.router.routing.candidate import Role, WorkerFacts
from pagemesh.router.routing.cost import Link
from pagemesh.router.session_pool import SessionPool


class Closed(NamedTuple):
    """Ids of decode workers that take no requests."""

    unreachable: set[str]
    """No session with them is open."""
    draining: set[str]
    """They said that they are about to stop."""


class ReportedLoad(NamedTuple):
    """Requests on decode workers."""

    num_running: int
    num_waiting: int
    num_queued: int
    """Of the waiting ones, those without a seat."""

    @property
    def num_deferred(self) -> int:
        """Of the waiting ones, those whose KV is on its way."""
        return self.num_waiting - self.num_queued


class Workers:
    """Answers from what the directory and the sessions say now. Belongs to one event loop."""

    def __init__(
        self, model_name: str, directory: Directory, sessions: SessionPool, parity: Parity
    ) -> None:
        self.model_name = model_name
        self._directory = directory
        self._sessions = sessions
        self._parity = parity
        self._states: tuple[WorkerState, ...] = ()
        self._known: dict[str, tuple[WorkerState, WorkerFacts]] = {}
        self._facts: list[WorkerFacts] = []
        self._of_model: dict[Role, list[WorkerFacts]] = {role: [] for role in Role}
        self._last_max_model_len: int | None = None

    def facts(self) -> Sequence[WorkerFacts]:
        """What the model's workers said, and others with which they can exchange KV, in order of joining."""
        self._refresh()
        return self._facts

    def reachable(self, role: Role) -> list[WorkerFacts]:
        """The model's workers of a role to which something sent now would arrive."""
        self._refresh()
        workers = self._of_model[role]
        return workers if role is Role.PREFILL else list(filter(self._is_live, workers))

    def decoders(self) -> list[WorkerFacts]:
        """The model's decode workers, whether or not they can be reached."""
        self._refresh()
        return self._of_model[Role.DECODE]

    @property
    def is_anybody_expected(self) -> bool:
        """Whether there is a decode worker that has not said that it stops, or was a moment ago.

        A connection that broke is open again in a moment, if its worker is there; and one that left may come back.
        """
        is_there = any(not self._is_draining(each) for each in self.decoders())
        return is_there or self._sessions.has_just_lost(self.model_name)

    def reported_load(self) -> ReportedLoad:
        """What the model's decode workers last said of their requests, all together."""
        workers = self.decoders()
        return ReportedLoad(
            num_running=sum(worker.num_running for worker in workers),
            num_waiting=sum(worker.num_waiting for worker in workers),
            num_queued=sum(min(worker.num_queued, worker.num_waiting) for worker in workers),
        )

    def max_model_len(self) -> int | None:
        """Longest context that a decode worker offers; None while there is none."""
        return max((w.max_model_len for w in self.reachable(Role.DECODE)), default=None)

    def require_max_model_len(self) -> int:
        """Longest context that a decode worker offers, of those that can be reached if there are any.

        What the last ones offered while one of them is expected again; UnavailableError while nobody is.
        """
        workers = self.reachable(Role.DECODE) or self.decoders()
        if workers:
            self._last_max_model_len = max(worker.max_model_len for worker in workers)
        elif self._last_max_model_len is None or not self.is_anybody_expected:
            raise self.nobody()
        return self._last_max_model_len

    def nobody(self) -> UnavailableError:
        """That no decode worker can take a request."""
        return UnavailableError(
            f"no decode worker for the model {self.model_name!r} can be reached at the moment",
            reason="NO_WORKER",
        )

    def closed(self) -> Closed:
        """Decode workers that cannot or must not be sent anything."""
        closed = Closed(set(), set())
        for facts in self.facts():
            # A prefill worker that the kvstore cannot confirm costs a retry at worst; the decode worker then
            # computes the prompt itself.
            if facts.role is Role.DECODE and not self._is_live(facts):
                kind = closed.draining if self._is_draining(facts) else closed.unreachable
                kind.add(facts.worker_id)
        return closed

    def _is_live(self, decode: WorkerFacts) -> bool:
        session = self._sessions.get(decode.worker_id)
        return session is not None and session.is_live

    def _is_draining(self, decode: WorkerFacts) -> bool:
        session = self._sessions.get(decode.worker_id)
        return session is not None and session.is_draining

    def _refresh(self) -> None:
        """Take over what changed in the directory since the last time."""
        states = self._directory.workers()
        if states is self._states:
            return
        self._states = states
        self._known = {
            state.worker_id: self._look_at(state) for state in states if state.role in ROLES
        }
        known = [facts for _, facts in self._known.values()]
        own = [facts for facts in known if facts.model_name == self.model_name]
        self._of_model = {role: [facts for facts in own if facts.role is role] for role in Role}
        models = {facts.model_fingerprint for facts in own}
        self._facts = [facts for facts in known if facts.model_fingerprint in models]

    def _look_at(self, state: WorkerState) -> tuple[WorkerState, WorkerFacts]:
        """A worker's state with its facts, of which only those are made anew of which it said something else."""
        known, facts = self._known.get(state.worker_id, (None, None))
        if known is None or facts is None or known.info is not state.info:
            return state, self._report(_introduce(state), state)
        if known.load is not state.load:
            return state, self._report(facts, state)
        return known, facts

    def _report(self, facts: WorkerFacts, state: WorkerState) -> WorkerFacts:
        """What a worker is, with what it last said of its load."""
        load = state.load
        return replace(
            facts,
            is_degraded=self._parity.is_degraded(facts.worker_id),
            num_running=load.running_request_count,
            num_waiting=load.waiting_request_count,
            num_queued=load.queued_request_count,
            num_pending_tokens=load.pending_prefill_token_count,
            num_preemptions=load.preemption_count,
            num_swap_blocks=load.swap_block_count,
            num_used_swap_blocks=load.used_swap_block_count,
            num_free_blocks=facts.num_blocks
            if state.reported_at is None
            else load.free_block_count,
            reported_at=state.reported_at,
            prefill_rate=rate_from_proto(load.prefill_rate),
            links={
                link.worker_id: Link(link.bytes_per_second, link.latency_seconds)
                for link in load.links
                if is_possible((link.bytes_per_second, link.latency_seconds))
            },
        )


def _introduce(state: WorkerState) -> WorkerFacts:
    """What an incarnation of a worker is as long as it lives."""
    info = state.info
    return WorkerFacts(
        worker_id=state.worker_id,
        role=ROLES[state.role],
        address=state.address,
        epoch=info.epoch,
        model_name=info.model_name,
        model_fingerprint=info.model_fingerprint,
        layout=layout_from_proto(info.kv_layout),
        block_naming=info.canary.block_digest,
        arithmetic=info.arithmetic,
        caches_prefixes=not info.forgets_prefixes,
        quantization=info.quantization,
        max_model_len=info.max_model_len,
        max_num_seqs=max(1, info.max_num_seqs),
        num_blocks=info.block_count,
    )
