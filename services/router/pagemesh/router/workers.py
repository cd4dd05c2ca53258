"""The workers that the router's model has at the moment, as they told the kvstore of themselves.

Translates their messages into what routing sees of them. Decides nothing.
"""

from __future__ import annotations

from typing import NamedTuple

from pagemesh.errors import UnavailableError
from pagemesh.kvship.layout import layout_from_proto
from pagemesh.membership.directory import Directory
from pagemesh.membership.load_message import is_possible, rate_from_proto
from pagemesh.membership.roster import WorkerState
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


class Workers:
    """Answers from what the directory and the sessions say now. Belongs to one event loop."""

    def __init__(
        self, model_name: str, directory: Directory, sessions: SessionPool, parity: Parity
    ) -> None:
        self.model_name = model_name
        self._directory = directory
        self._sessions = sessions
        self._parity = parity
        self._facts: dict[str, tuple[WorkerState, WorkerFacts]] = {}

    def reachable(self, role: Role) -> list[WorkerState]:
        """The model's workers of a role to which something sent now would arrive."""
        return [worker for worker in self._of_model(role) if self._is_reachable(worker)]

    def reported_load(self) -> tuple[int, int]:
        """Requests that the model's decode workers last said they run, and those that wait there."""
        loads = [worker.load for worker in self._of_model(Role.DECODE)]
        return (
            sum(load.running_request_count for load in loads),
            sum(load.waiting_request_count for load in loads),
        )

    def max_model_len(self) -> int | None:
        """Longest context that a decode worker offers; None while there is none."""
        lengths = [worker.info.max_model_len for worker in self.reachable(Role.DECODE)]
        return max(lengths, default=None)

    def require_max_model_len(self) -> int:
        """Longest context that a decode worker offers; UnavailableError while there is none."""
        max_model_len = self.max_model_len()
        if max_model_len is None:
            raise self.nobody()
        return max_model_len

    def nobody(self) -> UnavailableError:
        """That no decode worker can take a request."""
        return UnavailableError(
            f"no decode worker for the model {self.model_name!r} can be reached at the moment",
            reason="NO_WORKER",
        )

    def facts(self) -> list[WorkerFacts]:
        """What the model's workers said, and others with which they can exchange KV, in order of joining."""
        states = self._directory.workers()
        self._facts = {
            state.worker_id: self._known(state) for state in states if state.role in ROLES
        }
        known = [facts for _, facts in self._facts.values()]
        models = {f.model_fingerprint for f in known if f.model_name == self.model_name}
        return [facts for facts in known if facts.model_fingerprint in models]

    def closed(self) -> Closed:
        """Decode workers that cannot or must not be sent anything."""
        closed = Closed(set(), set())
        for state in self._directory.workers():
            if state.role in ROLES and not self._is_reachable(state):
                session = self._sessions.get(state.worker_id)
                is_draining = session is not None and session.is_draining
                (closed.draining if is_draining else closed.unreachable).add(state.worker_id)
        return closed

    def _known(self, state: WorkerState) -> tuple[WorkerState, WorkerFacts]:
        """A worker's state with its facts, which are made anew only when it said something."""
        known = self._facts.get(state.worker_id)
        if known is not None and known[0].info is state.info and known[0].load is state.load:
            return known
        return state, self._read(state)

    def _of_model(self, role: Role) -> list[WorkerState]:
        return [
            worker
            for worker in self._directory.workers()
            if ROLES.get(worker.role) is role and worker.info.model_name == self.model_name
        ]

    def _is_reachable(self, worker: WorkerState) -> bool:
        if ROLES[worker.role] is Role.PREFILL:
            # One that the kvstore cannot confirm costs a retry at worst; the decode worker then
            # computes the prompt itself.
            return True
        session = self._sessions.get(worker.worker_id)
        return session is not None and session.is_live

    def _read(self, state: WorkerState) -> WorkerFacts:
        info, load = state.info, state.load
        return WorkerFacts(
            worker_id=state.worker_id,
            role=ROLES[state.role],
            address=state.address,
            epoch=info.epoch,
            model_name=info.model_name,
            model_fingerprint=info.model_fingerprint,
            layout=layout_from_proto(info.kv_layout),
            block_naming=info.canary.block_digest,
            is_degraded=self._parity.is_degraded(state.worker_id),
            max_model_len=info.max_model_len,
            max_num_seqs=max(1, info.max_num_seqs),
            num_blocks=info.block_count,
            num_running=load.running_request_count,
            num_waiting=load.waiting_request_count,
            num_pending_tokens=load.pending_prefill_token_count,
            num_free_blocks=info.block_count
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
