"""The workers that the router's model has at the moment, as they told the kvstore of themselves.

Translates their messages into what routing sees of them. Decides nothing.
"""

from __future__ import annotations

from collections.abc import Mapping

from pagemesh.errors import UnavailableError
from pagemesh.kvship.layout import layout_from_proto
from pagemesh.membership.directory import Directory
from pagemesh.membership.load_message import is_possible, rate_from_proto
from pagemesh.membership.roster import WorkerState
from pagemesh.router.parity import Parity
from pagemesh.router.roles import ROLES
from pagemesh.router.routing.candidate import Candidate, Role
from pagemesh.router.routing.cost import Link
from pagemesh.router.routing.in_flight import InFlight
from pagemesh.router.session_pool import SessionPool


class Workers:
    """Answers from what the directory and the sessions say now. Belongs to one event loop."""

    def __init__(
        self, model_name: str, directory: Directory, sessions: SessionPool, parity: Parity
    ) -> None:
        self.model_name = model_name
        self._directory = directory
        self._sessions = sessions
        self._parity = parity

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

    def candidates(self, held: Mapping[str, int], in_flight: InFlight) -> list[Candidate]:
        """All workers, those of other models too, at the moment of one decision.

        `held` gives the leading blocks of the prompt on each worker, by its id; none on those left out.
        """
        return [
            self._candidate(worker, held.get(worker.worker_id, 0), in_flight)
            for worker in self._directory.workers()
            if worker.role in ROLES
        ]

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

    def _candidate(
        self, worker: WorkerState, num_held_blocks: int, in_flight: InFlight
    ) -> Candidate:
        info, load = worker.info, worker.load
        num_reported = load.running_request_count + load.waiting_request_count
        return Candidate(
            worker_id=worker.worker_id,
            role=ROLES[worker.role],
            address=worker.address,
            epoch=info.epoch,
            model_name=info.model_name,
            model_fingerprint=info.model_fingerprint,
            layout=layout_from_proto(info.kv_layout),
            max_model_len=info.max_model_len,
            max_num_seqs=max(1, info.max_num_seqs),
            reachable=self._is_reachable(worker),
            # The report includes this router's requests, but not those it has not seen yet.
            num_requests=max(num_reported, in_flight.count(worker.worker_id)),
            # What is found under the names of a degraded worker is chance.
            num_held_blocks=0 if self._parity.is_degraded(worker.worker_id) else num_held_blocks,
            block_naming=info.canary.block_digest,
            num_running=load.running_request_count,
            prefill_rate=rate_from_proto(load.prefill_rate),
            num_pending_tokens=load.pending_prefill_token_count,
            own_queue_seconds=in_flight.queue_seconds(worker.worker_id),
            links={
                link.worker_id: Link(link.bytes_per_second, link.latency_seconds)
                for link in load.links
                if is_possible((link.bytes_per_second, link.latency_seconds))
            },
            own_transfers=in_flight.transfers(worker.worker_id),
        )
