"""How the KV of prompts came to be, what was predicted of it, and what became of that."""

from __future__ import annotations

from typing import Final

from pagemesh.router.routing.prefill_plan import PrefillPlan
from pagemesh.router.routing.ways import Path
from pagemesh.telemetry.metrics import Metrics
from pagemesh.telemetry.metrics import routing as declared
from pagemesh.v1 import types_pb2

_PATHS: Final = {
    types_pb2.KV_PATH_LOCAL: Path.LOCAL,
    types_pb2.KV_PATH_REMOTE: Path.REMOTE,
    types_pb2.KV_PATH_PULL: Path.PULL,
    types_pb2.KV_PATH_REMOTE_PULL: Path.REMOTE_PULL,
}


def path_of(outcome: types_pb2.KvOutcome) -> Path | None:
    """The way that was taken; None when the worker does not say."""
    return _PATHS.get(outcome.path)


class PathMetrics:
    """Told of every plan, and of what came of it."""

    def __init__(self, metrics: Metrics) -> None:
        self._plans = metrics.counter(declared.KV_PATH_PLANS)
        self._overruled = metrics.counter(declared.KV_PATH_OVERRULED)
        self._predicted = metrics.histogram(declared.KV_PATH_PREDICTED_SECONDS)
        self._seconds = metrics.histogram(declared.KV_PATH_SECONDS)
        self._regret = metrics.histogram(declared.KV_PATH_REGRET_SECONDS)

    def on_plan(self, plan: PrefillPlan) -> None:
        """A request is about to be sent with this plan."""
        self._plans.labels(plan.path.value).inc()
        if plan.predicted_seconds:
            self._predicted.labels(plan.path.value).observe(plan.predicted_seconds)

    def on_kv(self, plan: PrefillPlan, outcome: types_pb2.KvOutcome) -> None:
        """The first token and the KV in front of it are there, whichever way they came."""
        path = path_of(outcome)
        if path is None:
            return
        took = outcome.time_to_ready
        seconds = took.seconds + took.nanos / 1e9
        self._seconds.labels(path.value).observe(seconds)
        if path is not plan.path:
            self._overruled.labels(plan.path.value, path.value).inc()
        others = [other for way, other in plan.predictions.items() if way is not path]
        if others:
            self._regret.observe(max(0.0, seconds - min(others)))
