"""One prompt computed on a prefill worker, whose KV leaves while it is computed."""

from __future__ import annotations

from collections.abc import Callable

from pagemesh.sim.job import Job
from pagemesh.sim.model import MeshModel
from pagemesh.sim.network import Flow
from pagemesh.sim.pull import Pull
from pagemesh.sim.worker import Worker


class RemotePrefill:
    """The stream of one `Prefill` call; owns the job on the prefill worker.

    `on_end` is called once, with whether all KV came, unless it is cancelled; `on_first_token` before that. Of a
    chunk, all layers but the last leave while it is computed, and the last when it is.
    """

    def __init__(
        self,
        receiver: Worker,
        prefill: Worker,
        source: Worker | None,
        job: Job,
        model: MeshModel,
        on_first_token: Callable[[], None],
        on_end: Callable[[bool], None],
    ) -> None:
        self._receiver = receiver
        self._prefill = prefill
        self._source = source
        self._model = model
        self._on_first_token = on_first_token
        self._on_end = on_end
        self._engine = prefill.engine
        self._num_sent_tokens = job.num_computed_tokens
        self._num_bytes = 0.0
        self._flow_seconds = 0.0
        self._flows: dict[Flow, None] = {}
        self._pull: Pull | None = None
        self._is_computed = self._is_over = False
        self.job = Job(
            owner=self,
            request=job.request,
            max_total_tokens=job.num_prompt_tokens + 1,
            names=job.names,
            num_tokens=job.num_prompt_tokens,
            is_export=True,
            is_held=True,
            awaits_kv=source is not None and source is not prefill,
        )

    @property
    def num_reused_tokens(self) -> int:
        """Of the prompt, what the prefill worker did not compute: cached there, or pulled."""
        return (self.job.num_cached_tokens or 0) + self.job.num_received_tokens

    def start(self) -> None:
        """Call the prefill worker."""
        if not self._prefill.is_alive:
            self._end(False)
            return
        self._prefill.users[self] = None
        seconds = self._prefill.network.latency_seconds
        self._prefill.clock.after(seconds, lambda: self._engine.tell(self._submit))

    def on_worker_lost(self, worker: Worker) -> None:
        """The prefill worker is gone."""
        self._end(False)

    def on_grant(self, job: Job) -> None:
        """See `JobOwner`: the prefill worker pulls first."""
        assert self._source is not None, "only with a source KV is waited for"
        self._pull = Pull(self._prefill, self._source, job, self._model, self._finish_import)
        self._pull.start()

    def on_first_token(self, job: Job) -> None:
        if not self._is_over:
            self._prefill.clock.after(self._model.network_seconds, self._tell_first_token)

    def on_end(self, job: Job) -> None:
        """See `JobOwner`; its last chunk is still to be told of."""

    def on_chunk(self, job: Job, start: int, end: int, *, is_computed: bool) -> None:
        if self._is_over:
            return
        # What was cached or pulled leaves with the first chunk.
        num_cached = max(0, start - self._num_sent_tokens)
        num_tokens = max(0, end - max(start, self._num_sent_tokens))
        if is_computed:
            self._num_sent_tokens = max(end, self._num_sent_tokens)
            self._is_computed = end == job.num_prompt_tokens
            self._send(num_tokens / self._model.num_layers)
        else:
            self._send(num_cached + num_tokens * (1 - 1 / self._model.num_layers))
            self._num_sent_tokens = max(start, self._num_sent_tokens)

    def _submit(self) -> None:
        if not self._is_over:
            self._engine.jobs.submit(self.job)

    def _finish_import(self, num_tokens: int) -> None:
        self._engine.tell(lambda: self._engine.jobs.finish_import(self.job, num_tokens))

    def _tell_first_token(self) -> None:
        if not self._is_over:
            self._on_first_token()

    def _send(self, num_tokens: float) -> None:
        num_bytes = num_tokens * self._model.kv_bytes_per_token
        self._num_bytes += num_bytes
        began_at = self._prefill.clock.now
        flow: Flow

        def arrived() -> None:
            self._flows.pop(flow, None)
            # Not the time in which nothing was computed yet that could be sent.
            self._flow_seconds += self._prefill.clock.now - began_at
            if self._is_computed and not self._flows:
                self._receiver.measure_link(self._prefill, self._num_bytes, self._flow_seconds)
                # Behind the first token, which was on its way before.
                self._prefill.clock.after(self._model.network_seconds, lambda: self._end(True))

        flow = self._prefill.network.send(
            self._prefill.worker_id, self._receiver.worker_id, num_bytes, arrived
        )
        self._flows[flow] = None

    def _end(self, is_complete: bool) -> None:
        if not self._is_over:
            self.cancel()
            self._on_end(is_complete)

    def cancel(self) -> None:
        """Nobody wants it any more; what is over is ignored."""
        if self._is_over:
            return
        self._is_over = True
        self._prefill.users.pop(self, None)
        for flow in self._flows:
            self._prefill.network.cancel(flow)
        if self._pull is not None and self.job.awaits_kv:
            self._pull.cancel()
            self._finish_import(0)
        self._engine.tell(self._release)

    def _release(self) -> None:
        if self.job.arrival:
            self._engine.jobs.end(self.job)
