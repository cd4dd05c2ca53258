"""Which models a mesh serves, and under which names: from the text of the settings to what is meant."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from pagemesh.config.checks import require


@dataclass(frozen=True, slots=True)
class NamedModel:
    """A model and what clients call it."""

    name: str

    source: str
    """Folder or hub id."""


@dataclass(frozen=True, slots=True)
class ServedModels:
    """All models of a mesh, at least one, and all further names."""

    models: tuple[NamedModel, ...]
    """By different names; requests that name none go to the first."""

    aliases: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    """For each further name the models that answer for it, by their names, and how much of its requests each
    gets, relative to the others; more than nothing."""

    @property
    def names(self) -> tuple[str, ...]:
        """Of the models."""
        return tuple(model.name for model in self.models)


def read_served_models(
    models: Sequence[str], served_names: Sequence[str], aliases: Sequence[str]
) -> ServedModels:
    """What `--model`, `--served-model-name` and `--model-alias` say together; ConfigError for what cannot be."""
    require(bool(models) and all(models), "--model", " ".join(models), "a folder or a hub id")
    read = [_read_model(text) for text in models]
    if served_names:
        require(
            len(read) == 1,
            "--served-model-name",
            " ".join(served_names),
            f"left out when --model has {len(read)} models: write name=folder there, and further names in"
            " --model-alias",
        )
        read = [NamedModel(served_names[0], read[0].source)]
    names = [model.name for model in read]
    for name in names:
        require(
            names.count(name) == 1,
            "--model",
            " ".join(models),
            f"models with different names, but two are called {name!r}: write name=folder for one of them",
        )
    further: dict[str, dict[str, float]] = {name: {names[0]: 1.0} for name in served_names[1:]}
    for text in aliases:
        alias, _, targets = text.partition("=")
        require(
            bool(alias and targets), "--model-alias", text, "alias=model or alias=model:weight,…"
        )
        require(alias not in further, "--model-alias", text, f"the only alias called {alias!r}")
        further[alias] = _read_targets(text, targets, names)
    for alias in further:
        require(alias not in names, "--model-alias", alias, "something else than a model's name")
    return ServedModels(tuple(read), further)


def _read_model(text: str) -> NamedModel:
    """From "name=source" or a source alone, whose last part is the name then."""
    name, equals, source = text.partition("=")
    # No name begins like a path; a path may have an equals sign in it.
    if equals and not text.startswith(("/", ".", "~")):
        require(bool(name and source), "--model", text, "name=folder, or a folder or a hub id")
        return NamedModel(name, source)
    return NamedModel(text.rstrip("/").rsplit("/", 1)[-1], text)


def _read_targets(setting: str, targets: str, names: Sequence[str]) -> dict[str, float]:
    weights: dict[str, float] = {}
    for target in targets.split(","):
        # Names may have colons in them, weights have none.
        name, colon, text = (target, "", "") if target in names else target.rpartition(":")
        known = ", ".join(names)
        require(
            name in names, "--model-alias", setting, f"alias=model:weight,… of the models {known}"
        )
        require(name not in weights, "--model-alias", setting, f"of different models: {name} twice")
        weights[name] = _read_weight(setting, text) if colon else 1.0
    return weights


def _read_weight(setting: str, text: str) -> float:
    try:
        weight = float(text)
    except ValueError:
        weight = math.nan
    require(
        0 < weight < math.inf,
        "--model-alias",
        setting,
        f"with weights above 0, which {text!r} is not",
    )
    return weight


def require_for_one(served: ServedModels, flag: str, value: str | None) -> None:
    """Raise ConfigError for a setting that several models cannot share."""
    require(
        value is None or len(served.models) == 1,
        flag,
        value,
        f"unset for {len(served.models)} models",
    )
