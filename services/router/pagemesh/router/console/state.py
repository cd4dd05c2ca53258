"""What the mesh does, as this router knows it: read when somebody looks, out of what is there anyway."""

from __future__ import annotations

import time
import uuid
from importlib import metadata
from typing import Any

from pagemesh.membership.directory import Directory
from pagemesh.router.console import rows
from pagemesh.router.console.request_log import RequestLog, RequestRecord
from pagemesh.router.console.watchers import Watchers
from pagemesh.router.console.watching import (
    MeasuredGenerator,
    WatchedEmbedder,
    WatchedGenerator,
    WatchedPlacer,
)
from pagemesh.router.console.window import WINDOW_S, Counters, Quantiles, Sample, Window, quantiles
from pagemesh.router.description import describe_router
from pagemesh.router.embedding.vectors import PromptEmbedder
from pagemesh.router.generation.interface import TextGenerator
from pagemesh.router.parity import Parity
from pagemesh.router.placer import Placer
from pagemesh.router.roles import ROLES
from pagemesh.router.routing.candidate import Role
from pagemesh.router.session_pool import SessionPool
from pagemesh.telemetry.metrics import Metrics
from pagemesh.v1 import process_pb2


class MeshState:
    """Wraps the parts of the request path, and answers what they do. Belongs to one event loop."""

    def __init__(
        self, directory: Directory, sessions: SessionPool, parity: Parity, metrics: Metrics
    ) -> None:
        self._directory = directory
        self._sessions = sessions
        self._parity = parity
        self._counters = Counters(metrics, time.monotonic)
        self._window = Window(self._counters.take)
        self._log = RequestLog(on_end=lambda: self._window.note(time.monotonic()))
        self._router_id = uuid.uuid4().hex[:8]
        self._started = time.monotonic()
        self.watchers = Watchers(self.snapshot, lambda: self._log.revision)

    def placer(self, placer: Placer) -> Placer:
        """The one to use."""
        return WatchedPlacer(placer)

    def generator(self, model_name: str, generator: MeasuredGenerator) -> TextGenerator:
        """The one to use."""
        return WatchedGenerator(generator, model_name, self._log)

    def embedder(self, model_name: str, embedder: PromptEmbedder) -> PromptEmbedder:
        """The one to use."""
        return WatchedEmbedder(embedder, model_name, self._log)

    def snapshot(self, since: int = 0) -> dict[str, Any]:
        """All of it; of the requests that are over, those that ended after revision `since`."""
        now = time.monotonic()
        degraded = {found.worker_id: found for found in self._parity.degraded()}
        known = sorted(self._directory.workers(), key=lambda each: each.worker_id)
        known = [worker for worker in known if worker.role in ROLES]
        workers = [
            rows.worker_row(
                worker,
                self._sessions.get(worker.worker_id),
                degraded.get(worker.worker_id),
                now,
            )
            for worker in known
        ]
        # What is prefilled elsewhere is at its decode worker, too.
        decoders = [worker for worker in workers if worker["role"] == Role.DECODE.value]
        return {
            "router": {
                "id": self._router_id,
                "version": metadata.version("pagemesh"),
                "uptime_seconds": round(now - self._started, 1),
            },
            "at": round(time.time(), 3),
            "watchers": self.watchers.num_watchers,
            "workers": workers,
            "mixed_arithmetic": rows.mixed_models(known),
            "queue": {
                "in_router": self._log.num_running,
                "running": sum(worker["running"] for worker in decoders),
                "waiting": sum(worker["waiting"] for worker in decoders),
            },
            "window": _window_object(*self._window.look()),
            "requests": [self._row(record) for record in self._log.changed(since)],
        }

    async def describe(self, response: process_pb2.DescribeResponse) -> None:
        """The same for tools: whom the router knows, and how it stands with them."""
        describe_router(response.router, self._directory, self._sessions, self._parity)

    def _row(self, record: RequestRecord) -> dict[str, Any]:
        """What is over is made into a row once."""
        if record.row is None:
            row = rows.request_row(record, self._log.seconds(record))
            if record.outcome is None:
                return row
            record.row = row
        return record.row


def _window_object(before: Sample, now: Sample) -> dict[str, Any]:
    seconds = max(1.0, min(WINDOW_S, now.at - before.at))
    grown = {name: round(total - before.totals[name]) for name, total in now.totals.items()}
    return {
        "seconds": round(seconds, 1),
        "ttft": _quantiles_object(quantiles(before.time_to_first_token, now.time_to_first_token)),
        "itl": _quantiles_object(quantiles(before.inter_token_latency, now.inter_token_latency)),
        "prompt_tokens_per_second": round(grown.pop("prompt_tokens") / seconds, 2),
        "output_tokens_per_second": round(grown.pop("output_tokens") / seconds, 2),
        "cache": grown,
    }


def _quantiles_object(found: Quantiles) -> dict[str, Any]:
    return {
        "count": found.num,
        "p50": None if found.p50 is None else round(found.p50, 6),
        "p90": None if found.p90 is None else round(found.p90, 6),
    }
