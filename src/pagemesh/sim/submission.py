"""One request on its decode worker: where its KV comes from, and when its tokens come."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol

from pagemesh.router.routing.prefill_plan import PrefillPlan
from pagemesh.router.routing.ways import Path
from pagemesh.sim.job import Job
from pagemesh.sim.kv_import import KvImport
from pagemesh.sim.model import MeshModel
from pagemesh.sim.trace import TraceRequest
from pagemesh.sim.worker import Worker


class SubmissionClient(Protocol):
    """The router's side of it. What happens on the worker is told a way through the network later."""

    def on_first_token(self) -> None:
        """The first token is there."""
        ...

    def on_kv(self) -> None:
        """All KV of the prompt is, too."""
        ...

    def on_end(self) -> None:
        """So is the last token."""
        ...

    def on_lost(self) -> None:
        """The worker is gone."""
        ...


class Submission:
    """Owns the job on the decode worker."""

    def __init__(
        self,
        worker: Worker,
        peers: Mapping[str, Worker],
        request: TraceRequest,
        names: list[bytes],
        plan: PrefillPlan | None,
        model: MeshModel,
        client: SubmissionClient,
    ) -> None:
        self.worker = worker
        self._model = model
        self._client = client
        self._engine = worker.engine
        self._has_first_token = self._has_kv = self._is_over = False
        self._is_granted = False
        has_plan = plan is not None and plan.path is not Path.LOCAL
        self.job = Job(
            owner=self,
            request=request,
            max_total_tokens=min(request.num_total_tokens, worker.model.max_model_len),
            names=names,
            num_tokens=request.num_prompt_tokens,
            awaits_kv=has_plan,
        )
        self._import = (
            KvImport(worker, peers, self.job, plan, model, self._tell_kv)
            if plan is not None and has_plan
            else None
        )

    @property
    def path(self) -> Path:
        """On which the KV came."""
        return Path.LOCAL if self._import is None else self._import.path

    @property
    def num_delivered_tokens(self) -> int:
        """Of the prompt, whose KV was not computed for this request."""
        num_reused = 0 if self._import is None else self._import.num_reused_tokens
        return max(num_reused, self.job.num_cached_tokens or 0)

    def start(self) -> None:
        """Send it to the worker."""
        self.worker.users[self] = None
        self._later(lambda: self._engine.tell(self._submit))

    def cancel(self) -> None:
        """Nobody waits for it any more; what is over is ignored."""
        if not self._is_over:
            self._close()
            self._engine.tell(self._end_job)

    def on_worker_lost(self, worker: Worker) -> None:
        """The decode worker is gone."""
        if not self._is_over:
            self._close()
            self._client.on_lost()

    def on_grant(self, job: Job) -> None:
        assert self._import is not None, "only with a plan KV is waited for"
        self._is_granted = True
        self._import.start()

    def on_chunk(self, job: Job, start: int, end: int, *, is_computed: bool) -> None:
        """See `JobOwner`; only exports have them."""

    def on_first_token(self, job: Job) -> None:
        self._has_first_token = True
        self._later(self._client.on_first_token)
        self._tell_kv()

    def on_end(self, job: Job) -> None:
        if not self._is_over:
            self._close()
            self._later(self._client.on_end)

    def _submit(self) -> None:
        if not self._is_over:
            self._engine.jobs.submit(self.job)

    def _end_job(self) -> None:
        if self.job.arrival:
            self._engine.jobs.end(self.job)

    def _tell_kv(self) -> None:
        is_there = not self.job.awaits_kv and self._has_first_token
        if is_there and not self._has_kv and not self._is_over:
            self._has_kv = True
            self._later(self._client.on_kv)

    def _close(self) -> None:
        self._is_over = True
        self.worker.users.pop(self, None)
        if self._import is not None and self._is_granted:
            self._import.cancel()

    def _later(self, action: Callable[[], None]) -> None:
        self.worker.clock.after(self._model.network_seconds, action)
