"""What the suite's interpreter must have, and a folder of wheels that brings what it lacks.

A rented machine has torch and Triton, and no network. What is missing there is installed beside the tree, in a
folder that stands in front of the interpreter's own packages.
"""

from __future__ import annotations

import importlib.metadata
import subprocess
import sys
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from tools.gpu_suite.record import ROOT

if TYPE_CHECKING:
    from packaging.requirements import Requirement

ENGINES: Final = (
    "torch",
    "triton",
    "numpy",
    "llvmlite",
    "tokenizers",
    "safetensors",
    "protobuf",
    "pydantic",
    "structlog",
    "llguidance",
    "regex",
    "xxhash",
)
"""That kernels, models and the engine import, at the versions that pyproject.toml demands."""

TOOLS: Final = ("psutil", "pytest", "pytest-timeout", "pytest-xdist")
"""Of which any version will do."""

_DEVICE: Final = ("torch", "triton")
"""That come with the machine."""

WHEELS: Final = tuple(name for name in ENGINES + TOOLS if name not in _DEVICE)
"""What a folder of wheels has unless it is told otherwise."""

_INSTALL_S: Final = 90.0


class Lacking(NamedTuple):
    """What an interpreter does not have."""

    absent: list[str]
    old: list[str]
    """There, but older than demanded, with the version."""


class RefusedError(Exception):
    """The suite cannot start; the message says why, in a sentence."""


def wanted() -> list[str]:
    """Requirements of the suite, as pyproject.toml has them."""
    with (ROOT / "pyproject.toml").open("rb") as file:
        project = tomllib.load(file)["project"]
    texts = [*project["dependencies"], *project["optional-dependencies"]["gpu"]]
    by_name = {_requirement(text).name: text for text in texts}
    return [by_name[name] for name in ENGINES] + list(TOOLS)


def install_missing(site: Path, wheels: Path | None, requirements: Sequence[str]) -> list[str]:
    """Bring what is missing from the wheels; gives what is older than it should be, and stays so."""
    if wheels is not None and not wheels.is_dir():
        raise RefusedError(f"there is no folder of wheels {wheels}")
    lacking = find_lacking(site, requirements)
    tried: set[Path] = set()
    # A package from a wheel may need another one, which needs a third.
    while files := _wheels_of([*lacking.absent, *map(_name, lacking.old)], wheels) - tried:
        _install(site, sorted(files))
        tried |= files
        lacking = find_lacking(site, requirements)
    if lacking.absent:
        raise RefusedError(_words(lacking.absent, wheels))
    return lacking.old


def find_lacking(site: Path, requirements: Iterable[str]) -> Lacking:
    """Of the requirements, and of what those need that were installed from wheels."""
    there = _versions([str(site), *sys.path])
    lacking = Lacking([], [])
    for text in dict.fromkeys([*requirements, *_needs_of(site)]):
        requirement = _requirement(text)
        if requirement.marker is not None and not requirement.marker.evaluate({"extra": ""}):
            continue
        name = normalized(requirement.name)
        version = there.get(name)
        if version is None:
            lacking.absent.append(name)
        elif not requirement.specifier.contains(version, prereleases=True):
            lacking.old.append(f"{name} {version}")
    return lacking


def normalized(name: str) -> str:
    """A package's name, however it is written."""
    return name.lower().replace("_", "-").replace(".", "-")


def _versions(path: list[str]) -> Mapping[str, str]:
    """By name; of two of one name, that of the first folder."""
    found: dict[str, str] = {}
    for distribution in importlib.metadata.distributions(path=path):
        found.setdefault(normalized(distribution.name), distribution.version)
    return found


def _needs_of(site: Path) -> list[str]:
    distributions = importlib.metadata.distributions(path=[str(site)])
    return [text for each in distributions for text in each.requires or ()]


def _requirement(text: str) -> Requirement:
    """What pip understands; pytest comes with the same library, and pip has a copy."""
    try:
        from packaging.requirements import Requirement
    except ImportError:
        from pip._vendor.packaging.requirements import Requirement  # type: ignore[assignment]
    return Requirement(text)


def _name(text: str) -> str:
    """Of a package with its version."""
    return text.split()[0]


def _wheels_of(names: Iterable[str], wheels: Path | None) -> set[Path]:
    asked = set(names)
    files = [] if wheels is None else wheels.glob("*.whl")
    return {file for file in files if normalized(file.name.split("-")[0]) in asked}


def _install(site: Path, files: Sequence[Path]) -> None:
    options = ("--no-index", "--no-deps", "--no-compile", "--no-cache-dir", "--upgrade")
    pip = [sys.executable, "-m", "pip", "-q", "--disable-pip-version-check", "install"]
    words: list[Any] = [*pip, *options, "--target", site, *files]
    try:
        done = subprocess.run(
            words, capture_output=True, text=True, timeout=_INSTALL_S, check=False
        )
    except subprocess.TimeoutExpired as error:
        raise RefusedError(f"pip did not end within {_INSTALL_S:.0f} s") from error
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["it says nothing"])[-1]
        names = ", ".join(file.name for file in files)
        raise RefusedError(f"pip cannot install {names}: {last}")


def _words(absent: Sequence[str], wheels: Path | None) -> str:
    python = f"{sys.version_info.major}.{sys.version_info.minor}"
    beside = "" if wheels is None else f" nor in {wheels}"
    make = f'make gpu-wheels WHEELS=folder WHEEL_PYTHON={python} PACKAGES="{" ".join(absent)}"'
    return (
        f"{', '.join(absent)}: not in this Python {python}{beside}; where there is a network,"
        f" `{make}` makes a folder that has them"
    )
