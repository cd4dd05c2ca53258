"""Carries out prefill plans: who is asked for a prompt's KV, in which order, and when nobody is."""

from __future__ import annotations

import asyncio
import time

from pagemesh.telemetry import metrics as declared
from pagemesh.v1 import decode_pb2
from pagemesh.worker.kv_import import KvImport
from pagemesh.worker.kv_importer import KvImporter
from pagemesh.worker.worker import Worker


class RemotePrefiller:
    """Runs the plans of one decode worker, each as a task. Belongs to one event loop."""

    def __init__(self, worker: Worker) -> None:
        self._importer = KvImporter(worker)
        metrics = worker.metrics
        self._outcomes = metrics.counter(declared.REMOTE_PREFILLS)
        self._seconds = metrics.histogram(declared.REMOTE_PREFILL_SECONDS)
        self._exposed_seconds = metrics.histogram(declared.KV_TRANSFER_EXPOSED_SECONDS)

    def start(self, kv: KvImport, plan: decode_pb2.PrefillPlan) -> asyncio.Task[None]:
        """Fill the granted blocks; cancel the task when the request ended. It gives the grant back."""
        task = self._importer.start(kv, self._run(kv, plan))
        task.add_done_callback(self._count_cancelled)
        return task

    async def close(self) -> None:
        """End all imports and close the channels. Idempotent."""
        await self._importer.close()

    async def _run(self, kv: KvImport, plan: decode_pb2.PrefillPlan) -> None:
        if not kv.is_worth_asking:
            outcome = "local"
        elif plan.workers:
            outcome = await self._prefill(kv, plan)
        elif self._importer.wanted_from(kv, plan.source):
            await self._importer.pull(kv, plan.source)
            outcome = "pulled" if kv.num_pulled_tokens else "fallback"
        else:
            outcome = "local"
        self._outcomes.labels(outcome).inc()

    async def _prefill(self, kv: KvImport, plan: decode_pb2.PrefillPlan) -> str:
        """Ask one prefill worker after another for what is still missing; gives the outcome."""
        started_at = time.monotonic()
        source = plan.source if plan.HasField("source") else None
        for worker in plan.workers:
            if await self._importer.prefill(kv, worker, source):
                self._seconds.observe(time.monotonic() - started_at)
                self._exposed_seconds.observe(kv.exposed_seconds)
                return "complete"
            if not kv.is_worth_asking:
                break
        return "fallback"

    def _count_cancelled(self, task: asyncio.Task[None]) -> None:
        if task.cancelled():
            self._outcomes.labels("cancelled").inc()
