"""Carries out prefill plans: who is asked for a prompt's KV, in which order, and when nobody is."""

from __future__ import annotations

import asyncio
import time
from functools import partial

from pagemesh.kv_transfer.importer import KvImporter
from pagemesh.kv_transfer.kv_import import KvImport
from pagemesh.telemetry.metrics import transfer as declared
from pagemesh.v1 import decode_pb2
from pagemesh.worker.worker import Worker


class RemotePrefiller:
    """Runs the plans of one decode worker, each as a task. Belongs to one event loop."""

    def __init__(self, worker: Worker) -> None:
        self._worker = worker
        self._importer = KvImporter(worker, "pull")
        metrics = worker.metrics
        self._outcomes = metrics.counter(declared.REMOTE_PREFILLS)
        self._seconds = metrics.histogram(declared.REMOTE_PREFILL_SECONDS)
        self._exposed_seconds = metrics.histogram(declared.KV_TRANSFER_EXPOSED_SECONDS)

    def start(self, kv: KvImport, plan: decode_pb2.PrefillPlan) -> asyncio.Task[None]:
        """Fill the granted blocks; cancel the task when the request ended. It gives the grant back."""
        task = self._importer.start(kv, self._run(kv, plan))
        task.add_done_callback(partial(self._count_cancelled, kv))
        return task

    async def close(self) -> None:
        """End all imports and close the channels. Idempotent."""
        await self._importer.close()

    async def _run(self, kv: KvImport, plan: decode_pb2.PrefillPlan) -> None:
        if not kv.is_worth_asking:
            outcome = "local"
        elif self._is_sooner_here(kv, plan):
            outcome = "overruled"
        elif await self._prefill(kv, plan):
            outcome = "complete"
        elif kv.is_worth_asking and self._importer.wanted_from(kv, plan.source):
            await self._importer.pull(kv, plan.source)
            outcome = "pulled" if kv.num_pulled_tokens else "fallback"
        else:
            outcome = "fallback" if plan.workers else "local"
        self._outcomes.labels(outcome).inc()

    async def _prefill(self, kv: KvImport, plan: decode_pb2.PrefillPlan) -> bool:
        """Ask one prefill worker after another for what is still missing; whether everything came."""
        started_at = time.monotonic()
        source = plan.source if plan.HasField("source") else None
        for worker in plan.workers:
            if await self._importer.prefill(kv, worker, source):
                self._seconds.observe(time.monotonic() - started_at)
                self._exposed_seconds.observe(kv.exposed_seconds)
                return True
            if not kv.is_worth_asking:
                break
        return False

    def _is_sooner_here(self, kv: KvImport, plan: decode_pb2.PrefillPlan) -> bool:
        """Whether the missing tokens would be computed here so soon that the plan would have said so.

        The plan was made with an older view: since then, this worker may have got more of the prompt into
        its cache, or less to do.
        """
        if not plan.overrule_seconds:
            return False
        num_held = kv.num_verified_tokens
        load = self._worker.dispatcher.load
        seconds = load.prefill_seconds(len(kv.token_ids) - num_held, num_held)
        return seconds is not None and seconds < plan.overrule_seconds

    def _count_cancelled(self, kv: KvImport, task: asyncio.Task[None]) -> None:
        if task.cancelled():
            self._outcomes.labels("cancelled" if kv.is_needed else "finished").inc()
