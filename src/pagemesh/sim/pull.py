"""One stream of KV out of another worker's cache, as `KvTransfer.Fetch` has it."""

from __future__ import annotations

from collections.abc import Callable

from pagemesh.sim.job import Job
from pagemesh.sim.model import MeshModel
from pagemesh.sim.network import Flow
from pagemesh.sim.worker import Worker


class Pull:
    """Brings what a source holds of a job's prompt beyond what the receiver does.

    `on_end` is called once, with the leading tokens that are there then, unless it is cancelled. The source's
    blocks are pinned as long as the stream is open.
    """

    def __init__(
        self,
        receiver: Worker,
        source: Worker,
        job: Job,
        model: MeshModel,
        on_end: Callable[[int], None],
    ) -> None:
        self._receiver = receiver
        self._source = source
        self._job = job
        self._model = model
        self._on_end = on_end
        self._engine = source.engine
        self._pinned: list[int] = []
        self._flow: Flow | None = None
        self._is_over = False

    def start(self) -> None:
        """Call the source."""
        if not self._source.is_alive:
            self._end(self._job.num_computed_tokens)
            return
        self._source.users[self] = None
        seconds = self._source.network.latency_seconds
        self._source.clock.after(seconds, lambda: self._engine.tell(self._send))

    def on_worker_lost(self, worker: Worker) -> None:
        """The source is gone."""
        self._end(self._job.num_computed_tokens)

    def _send(self) -> None:
        if self._is_over:
            return
        num_blocks = self._job.num_prompt_tokens // self._model.block_size
        self._pinned = self._engine.jobs.pin(self._job.names[:num_blocks])
        num_tokens = len(self._pinned) * self._model.block_size
        num_new = num_tokens - self._job.num_computed_tokens
        if num_new <= 0:
            self._end(self._job.num_computed_tokens)
            return
        num_bytes = num_new * self._model.kv_bytes_per_token
        began_at = self._source.clock.now
        self._flow = self._source.network.send(
            self._source.worker_id,
            self._receiver.worker_id,
            num_bytes,
            lambda: self._arrived(num_tokens, num_bytes, began_at),
        )

    def _arrived(self, num_tokens: int, num_bytes: float, began_at: float) -> None:
        seconds = self._receiver.clock.now - began_at
        self._receiver.measure_link(self._source, num_bytes, seconds)
        self._end(num_tokens)

    def _end(self, num_tokens: int) -> None:
        if not self._is_over:
            self.cancel()
            self._on_end(num_tokens)

    def cancel(self) -> None:
        """Nobody wants it any more; what is over is ignored."""
        if self._is_over:
            return
        self._is_over = True
        self._source.users.pop(self, None)
        if self._flow is not None:
            self._source.network.cancel(self._flow)
        if self._pinned:
            self._engine.tell(lambda: self._engine.jobs.unpin(self._pinned))
