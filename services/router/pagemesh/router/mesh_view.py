"""What the router says about the mesh: models, health, metrics."""

from __future__ import annotations

from functools import partial
from typing import Any

from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest

from pagemesh.router.models import ModelService
from pagemesh.router.parity import Difference, Parity
from pagemesh.router.routing.candidate import Role
from pagemesh.router.served_model import ServedModel
from pagemesh.router.workers import Workers
from pagemesh.telemetry import metrics as names
from pagemesh.telemetry.metrics import Metrics


class MeshView:
    """Answers questions about the mesh from what the router knows at that moment."""

    def __init__(
        self, model: ServedModel, workers: Workers, parity: Parity, metrics: Metrics
    ) -> None:
        self._model = model
        self._workers = workers
        self._parity = parity
        self._metrics = metrics
        # Read when somebody scrapes, here or on the router's own metrics port.
        for role in Role:
            number = metrics.gauge(names.WORKERS).labels(model.name, role.value)
            number.set_function(partial(self._num_workers, role))
            for difference in Difference:
                degraded = metrics.gauge(names.WORKERS_DEGRADED)
                number = degraded.labels(model.name, role.value, difference.value)
                number.set_function(partial(self._num_degraded, role, difference))
        running = metrics.gauge(names.NUM_REQUESTS_RUNNING).labels(model.name)
        running.set_function(lambda: workers.reported_load()[0])
        waiting = metrics.gauge(names.NUM_REQUESTS_WAITING).labels(model.name)
        waiting.set_function(lambda: workers.reported_load()[1])

    def model_object(self, service: ModelService) -> dict[str, Any]:
        """A model as OpenAI's models routes show it; UnavailableError while nobody can run it."""
        return {
            "id": service.model.name,
            "object": "model",
            "created": service.model.created,
            "owned_by": "pagemesh",
            "max_model_len": service.workers.require_max_model_len(),
        }

    def health(self) -> dict[str, Any]:
        """Whether a request could be served, and if not, what is missing; and which workers are degraded."""
        num_decoders = self._num_workers(Role.DECODE)
        health: dict[str, Any] = {
            "status": "ok" if num_decoders else "unavailable",
            "model": self._model.name,
            "decode_workers": num_decoders,
            "prefill_workers": self._num_workers(Role.PREFILL),
            "degraded_workers": [
                {
                    "worker_id": found.worker_id,
                    "role": found.role.value,
                    "reason": found.difference.value,
                    "advice": found.advice,
                }
                for found in self._parity.degraded()
            ],
        }
        if not num_decoders:
            health["missing"] = f"a decode worker that serves the model {self._model.name!r}"
        return health

    def metrics_page(self) -> tuple[str, bytes]:
        """Content type and text of the metrics, with the workers' loads as last reported."""
        return CONTENT_TYPE_LATEST, generate_latest(self._metrics.registry)

    def _num_degraded(self, role: Role, difference: Difference) -> int:
        return sum(
            found.role is role and found.difference is difference
            for found in self._parity.degraded()
        )

    def _num_workers(self, role: Role) -> int:
        return len(self._workers.reachable(role))
