"""The models that a router serves, each with everything that answers for it, and all their names."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from pagemesh.errors import ModelNotFoundError, UnavailableError
from pagemesh.router.call import Call
from pagemesh.router.embedding.vectors import PromptEmbedder
from pagemesh.router.generation.interface import TextGenerator
from pagemesh.router.routing.candidate import Role, WorkerFacts
from pagemesh.router.served_model import ServedModel
from pagemesh.router.split import choose


class Crew(Protocol):
    """The workers of one model that can be reached at the moment."""

    def reachable(self, role: Role) -> Sequence[WorkerFacts]:
        """Those of a role."""
        ...

    def max_model_len(self) -> int | None:
        """Longest context that a decode worker offers; None while there is none."""
        ...

    def nobody(self) -> UnavailableError:
        """That no decode worker can take a request."""
        ...

    def require_max_model_len(self) -> int:
        """Longest context on offer, if need be by who is out of reach; UnavailableError while there is nobody."""
        ...


@dataclass(frozen=True, slots=True)
class ModelService:
    """One model: how requests see it, who runs it, and the ways there."""

    model: ServedModel
    workers: Crew
    generator: TextGenerator
    embedder: PromptEmbedder


class ServedName(NamedTuple):
    """A name that requests may ask for."""

    name: str

    services: Sequence[ModelService]
    """The models that answer for it, one at least."""

    @property
    def quantization(self) -> str:
        """How weights are quantised; empty for dense ones, and where decode workers that can be reached differ."""
        found = {
            facts.quantization
            for service in self.services
            for facts in service.workers.reachable(Role.DECODE)
        }
        return found.pop() if len(found) == 1 else ""


class Models:
    """Finds the model that a request names."""

    def __init__(
        self,
        services: Sequence[ModelService],
        aliases: Mapping[str, Mapping[str, float]] | None = None,
        unlisted: Mapping[str, str] | None = None,
    ) -> None:
        """`services` has one at least, the first answers requests that name none; for the others see the settings."""
        self._services = {service.model.name: service for service in services}
        self._default = services[0]
        self._aliases = dict(aliases or {})
        self._unlisted = dict(unlisted or {})

    def __iter__(self) -> Iterator[ModelService]:
        return iter(self._services.values())

    def names(self) -> list[ServedName]:
        """All names that are told: those of the models, then the aliases."""
        return [self.named(name) for name in (*self._services, *self._aliases)]

    def named(self, name: str) -> ServedName:
        """What answers for a name, with the one that is told of it; ModelNotFoundError for one that nobody has."""
        name = self._unlisted.get(name, name)
        if name in self._services:
            return ServedName(name, [self._services[name]])
        if name in self._aliases:
            return ServedName(name, [self._services[model] for model in self._aliases[name]])
        known = ", ".join(map(repr, (*self._services, *self._aliases)))
        raise ModelNotFoundError(
            f"the model {name!r} does not exist; this mesh serves {known}", param="model"
        )

    def find(self, name: str | None, call: Call) -> ModelService:
        """The model that answers a call; no name at all means the first one, as in vLLM.

        Behind a name that is split, it is the same one for all calls of a session; one that nobody can run at
        the moment only if there is no other. Raises ModelNotFoundError for a name that nobody has.
        """
        if not name:
            return self._default
        services = self.named(name).services
        if len(services) == 1:
            return services[0]
        able = [s for s in services if s.workers.max_model_len() is not None] or services
        weights = self._aliases[name]
        key = call.session or call.request_id.encode()
        return self._services[choose({s.model.name: weights[s.model.name] for s in able}, key)]
