"""The models that a router serves, each with everything that answers for it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from pagemesh.errors import ModelNotFoundError
from pagemesh.router.embedding.vectors import PromptEmbedder
from pagemesh.router.generation.interface import TextGenerator
from pagemesh.router.routing.candidate import Role, WorkerFacts
from pagemesh.router.served_model import ServedModel


class Crew(Protocol):
    """The workers of one model that can be reached at the moment."""

    def reachable(self, role: Role) -> Sequence[WorkerFacts]:
        """Those of a role."""
        ...

    def max_model_len(self) -> int | None:
        """Longest context that a decode worker offers; None while there is none."""
        ...

    def require_max_model_len(self) -> int:
        """The same; UnavailableError while there is none."""
        ...


@dataclass(frozen=True, slots=True)
class ModelService:
    """One model: how requests see it, who runs it, and the ways there."""

    model: ServedModel
    workers: Crew
    generator: TextGenerator
    embedder: PromptEmbedder


class Models:
    """Finds the model that a request names."""

    def __init__(self, services: Sequence[ModelService]) -> None:
        """`services` has one at least; the first answers requests that name none."""
        self._services = {service.model.name: service for service in services}
        self._default = services[0]

    def __iter__(self) -> Iterator[ModelService]:
        return iter(self._services.values())

    def find(self, name: str | None) -> ModelService:
        """The model of that name; no name at all means the first one, as in vLLM.

        Raises ModelNotFoundError for a name that nobody has.
        """
        if not name:
            return self._default
        service = self._services.get(name)
        if service is None:
            known = ", ".join(map(repr, self._services))
            raise ModelNotFoundError(
                f"the model {name!r} does not exist; this mesh serves {known}", param="model"
            )
        return service
