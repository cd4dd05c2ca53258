"""What the value of `--model` means, a folder, a hub id or a short name, and how clients call the model there."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Final, NamedTuple

SHORT_NAMES: Final[Mapping[str, str]] = {"demo": "models/demo"}
"""Models that need no path, each with its folder in a checkout, in the wheel's package (hatch_build.py) and in the
images. A folder that lies in the current one under such a name wins."""

_SHIPPED_BELOW: Final = (
    # src/pagemesh/config/ of a checkout
    Path(__file__).parents[3],
    # pagemesh/ of an installed wheel
    Path(__file__).parents[1],
    # The images have what ships beside the packages.
    Path(sys.prefix),
)


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
    return source.startswith(("/", ".", "~")) or source.count("/") > 1


def is_hub_id(source: str) -> bool:
    """Whether it is an id of the Hugging Face hub, if it is anything: what is on this machine comes first."""
    return not is_path(source) and find_local(source) is None


def find_local(source: str) -> Path | None:
    """Where a model is on this machine; None when there is nothing, neither under this path nor by a short name."""
    try:
        path = Path(source).expanduser()
        if path.exists():
            return path
    except (OSError, RuntimeError):  # no such user, or a name that no file can have
        return None
    if source not in SHORT_NAMES:
        return None
    folders = [root / SHORT_NAMES[source] for root in _SHIPPED_BELOW]
    return next((folder for folder in folders if folder.is_dir()), None)


def _last_part(source: str) -> str:
    last = source.rstrip("/").rsplit("/", 1)[-1]
    if last not in ("", ".", "..", "~"):
        return last
    # A folder by its way there, which has no name in it.
    return Path(source).expanduser().resolve().name or source
