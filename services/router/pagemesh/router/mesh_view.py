"""What the router says about the mesh: models, health, metrics."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest

from pagemesh.errors import UnavailableError
from pagemesh.router.dispatch.dispatch import Dispatch
from pagemesh.router.model_crew import ModelCrew
from pagemesh.router.models import ServedName
from pagemesh.router.parity import Difference, Parity
from pagemesh.router.routing.candidate import Role
from pagemesh.router.workers import Workers
from pagemesh.telemetry import metrics as names
from pagemesh.telemetry.metrics import Metrics


class MeshView:
    """Answers questions about the mesh from what the router knows at that moment."""

    def __init__(self, crews: Sequence[ModelCrew], parity: Parity, metrics: Metrics) -> None:
        """`crews` are those of each model."""
        self._workers = [crew.workers for crew in crews]
        self._parity = parity
        self._metrics = metrics
        for crew in crews:
            self._measure(crew.workers, crew.dispatch)

    def _measure(self, workers: Workers, dispatch: Dispatch) -> None:
        # Read when somebody scrapes, here or on the router's own metrics port.
        metrics, model_name = self._metrics, workers.model_name
        for role in Role:
            number = metrics.gauge(names.WORKERS).labels(model_name, role.value)
            number.set_function(partial(_num_reachable, workers, role))
            for difference in Difference:
                degraded = metrics.gauge(names.WORKERS_DEGRADED)
                number = degraded.labels(model_name, role.value, difference.value)
                number.set_function(partial(self._num_degraded, model_name, role, difference))
        running = metrics.gauge(names.NUM_REQUESTS_RUNNING).labels(model_name)
        running.set_function(lambda: workers.reported_load()[0])
        waiting = metrics.gauge(names.NUM_REQUESTS_WAITING).labels(model_name)
        waiting.set_function(lambda: workers.reported_load()[1] + dispatch.num_waiting)

    def model_objects(self, served: Sequence[ServedName]) -> list[dict[str, Any]]:
        """Those that somebody can run at the moment; UnavailableError when nobody can run any."""
        found, missing = [], None
        for each in served:
            try:
                found.append(self.model_object(each))
            except UnavailableError as error:
                missing = missing or error
        if missing is not None and not found:
            raise missing
        return found

    def model_object(self, served: ServedName) -> dict[str, Any]:
        """A name as OpenAI's models routes show it; UnavailableError while nobody can run what it stands for.

        Its context is the one that all have behind a name that is split.
        """
        services = served.services
        able = [s for s in services if s.workers.max_model_len() is not None] or services[:1]
        return {
            "id": served.name,
            "object": "model",
            "created": min(service.model.created for service in services),
            "owned_by": "pagemesh",
            "root": services[0].model.name if len(services) == 1 else served.name,
            "parent": None,
            "max_model_len": min(service.workers.require_max_model_len() for service in able),
        }

    def health(self) -> dict[str, Any]:
        """Whether a request could be served, and if not, what is missing; and which workers are degraded."""
        models = [
            {
                "model": workers.model_name,
                "decode_workers": len(workers.reachable(Role.DECODE)),
                "prefill_workers": len(workers.reachable(Role.PREFILL)),
            }
            for workers in self._workers
        ]
        missing = [model["model"] for model in models if not model["decode_workers"]]
        health: dict[str, Any] = {
            "status": "ok" if len(missing) < len(models) else "unavailable",
            "models": models,
            "decode_workers": sum(model["decode_workers"] for model in models),
            "prefill_workers": sum(model["prefill_workers"] for model in models),
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
        if missing:
            wanted = ", ".join(
                f"a decode worker that serves the model {name!r}" for name in missing
            )
            health["missing"] = wanted
        return health

    def metrics_page(self) -> tuple[str, bytes]:
        """Content type and text of the metrics, with the workers' loads as last reported."""
        return CONTENT_TYPE_LATEST, generate_latest(self._metrics.registry)

    def _num_degraded(self, model_name: str, role: Role, difference: Difference) -> int:
        return sum(
            (found.model_name, found.role, found.difference) == (model_name, role, difference)
            for found in self._parity.degraded()
        )


def _num_reachable(workers: Workers, role: Role) -> int:
    return len(workers.reachable(role))
