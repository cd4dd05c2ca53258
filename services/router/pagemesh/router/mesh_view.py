"""What the router says about the mesh: models, health, metrics."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pagemesh.errors import UnavailableError
from pagemesh.membership.directory import Directory
from pagemesh.router.mesh_metrics import MeshReadings, measure_mesh
from pagemesh.router.model_crew import ModelCrew
from pagemesh.router.models import ModelService, ServedName
from pagemesh.router.page_gathering import PageGathering
from pagemesh.router.parity import Parity
from pagemesh.router.routing.candidate import Role
from pagemesh.router.workers import Workers
from pagemesh.rpc.identity import Identity
from pagemesh.telemetry.metrics import Metrics


class MeshView:
    """Answers questions about the mesh from what the router knows at that moment."""

    def __init__(
        self,
        crews: Sequence[ModelCrew],
        parity: Parity,
        metrics: Metrics,
        directory: Directory,
        address: str,
        identity: Identity | None,
    ) -> None:
        """`crews` are those of each model, `address` is the router's own."""
        self._workers = [crew.workers for crew in crews]
        self._parity = parity
        names = [crew.workers.model_name for crew in crews]
        self.pages = PageGathering(metrics, directory, address, names, identity)
        for crew in crews:
            measure_mesh(metrics, crew, parity)
        self._readings = MeshReadings(metrics, self._workers)

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
            "root": services[0].model.source if len(services) == 1 else served.name,
            "parent": None,
            "max_model_len": min(_reachable_context(service) for service in able),
            "quantization": served.quantization or None,
        }

    def health(self) -> dict[str, Any]:
        """Whether a request could be served, and if not, what is missing; and which workers are degraded."""
        models = [
            {
                "model": workers.model_name,
                "decode_workers": len(workers.reachable(Role.DECODE)),
                "prefill_workers": len(workers.reachable(Role.PREFILL)),
                "arithmetic": _classes_of_arithmetic(workers),
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


def _classes_of_arithmetic(workers: Workers) -> list[str]:
    return sorted({facts.arithmetic for role in Role for facts in workers.reachable(role)})


def _reachable_context(service: ModelService) -> int:
    max_model_len = service.workers.max_model_len()
    if max_model_len is None:
        raise service.workers.nobody()
    return max_model_len
