"""How the KV of a prompt comes to its decode worker: the plan carried out, step by step."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from pagemesh.router.routing.prefill_plan import PrefillPlan
from pagemesh.router.routing.ways import Path
from pagemesh.sim.job import Job
from pagemesh.sim.model import MeshModel
from pagemesh.sim.pull import Pull
from pagemesh.sim.remote_prefill import RemotePrefill
from pagemesh.sim.worker import Worker


class KvImport:
    """Fills a job's granted blocks, as `decode.remote_prefill` does; gives the grant back exactly once.

    `on_kv` is called with that.
    """

    def __init__(
        self,
        worker: Worker,
        peers: Mapping[str, Worker],
        job: Job,
        plan: PrefillPlan,
        model: MeshModel,
        on_kv: Callable[[], None],
    ) -> None:
        self.path = Path.LOCAL
        """On which the KV came."""
        self.num_reused_tokens = 0
        """Of the prompt, that came from elsewhere, or was there, without being computed for it."""
        self._worker = worker
        self._peers = peers
        self._job = job
        self._plan = plan
        self._model = model
        self._on_kv = on_kv
        self._engine = worker.engine
        self._prefillers = [peers[candidate.worker_id] for candidate in plan.workers]
        self._stream: Pull | RemotePrefill | None = None
        self._is_over = False

    def start(self) -> None:
        """The blocks are granted; between steps."""
        job = self._job
        num_missing = job.num_prompt_tokens - job.num_computed_tokens
        if num_missing < self._model.block_size or self._is_sooner_here():
            self._finish(job.num_computed_tokens)
        elif self._prefillers:
            self._ask_next()
        else:
            self._pull()

    def cancel(self) -> None:
        """The request is over."""
        if self._stream is not None:
            self._stream.cancel()
            self._stream = None
        self._finish(0)

    def _is_sooner_here(self) -> bool:
        """Whether the worker overrules the plan."""
        if not self._plan.overrule_seconds:
            return False
        num_held = self._job.num_computed_tokens
        num_missing = self._job.num_prompt_tokens - num_held
        seconds = self._engine.load().prefill_seconds(num_missing, num_held)
        return seconds is not None and seconds < self._plan.overrule_seconds

    def _ask_next(self) -> None:
        self._stream = RemotePrefill(
            self._worker,
            self._prefillers.pop(0),
            self._source(),
            self._job,
            self._model,
            lambda: self._engine.tell(self._take_first_token),
            self._prefilled,
        )
        self._stream.start()

    def _take_first_token(self) -> None:
        if not self._is_over:
            self._engine.jobs.first_token(self._job)

    def _prefilled(self, is_complete: bool) -> None:
        stream, self._stream = self._stream, None
        assert isinstance(stream, RemotePrefill), "it has ended"
        if is_complete:
            self.path = Path.REMOTE_PULL if stream.job.num_received_tokens else Path.REMOTE
            self.num_reused_tokens = stream.num_reused_tokens
            self._finish(self._job.num_prompt_tokens)
        elif self._prefillers:
            self._ask_next()
        else:
            self._pull()

    def _pull(self) -> None:
        source = self._source()
        if source is None or source is self._worker:
            self._finish(self._job.num_computed_tokens)
            return
        self._stream = Pull(self._worker, source, self._job, self._model, self._pulled)
        self._stream.start()

    def _pulled(self, num_tokens: int) -> None:
        self._stream = None
        if num_tokens > self._job.num_computed_tokens:
            self.path = Path.PULL
            self.num_reused_tokens = num_tokens
        self._finish(num_tokens)

    def _source(self) -> Worker | None:
        source = self._plan.source
        return None if source is None else self._peers[source.worker_id]

    def _finish(self, num_tokens: int) -> None:
        if not self._is_over:
            self._is_over = True
            self._engine.tell(lambda: self._give_back(num_tokens))

    def _give_back(self, num_tokens: int) -> None:
        self._engine.jobs.finish_import(self._job, num_tokens)
        self._on_kv()
