"""How a model's embeddings are pooled, from the files that sentence-transformers keeps beside it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final, Literal

from pagemesh.engine.interface import Pooling
from pagemesh.errors import ConfigError
from pagemesh.models.config_json import ConfigJson

MODULES_FILE: Final = "modules.json"

DEFAULT_POOLING: Final = Pooling("last", normalize=True)
"""Of decoders whose folder says nothing, as in vLLM."""

_KINDS: Final[dict[str, Literal["last", "mean"]]] = {
    "pooling_mode_lasttoken": "last",
    "pooling_mode_mean_tokens": "mean",
}


def read_pooling(folder: Path) -> Pooling:
    """What modules.json and the folder of its pooling module say; without them, DEFAULT_POOLING.

    ConfigError for modules and ways of pooling that would change the vectors and are not supported.
    """
    path = folder / MODULES_FILE
    if not path.is_file():
        return DEFAULT_POOLING
    modules = _read_modules(path)
    kind: Literal["last", "mean"] | None = None
    normalize = False
    for name, place in modules[1:]:
        if name == "Pooling" and kind is None:
            kind = _read_kind(folder / place / "config.json")
        elif name == "Normalize":
            normalize = True
        else:
            raise ConfigError(
                f"{path} has the module {name!r}, but only one Pooling and Normalize can follow the "
                "Transformer"
            )
    if kind is None:
        raise ConfigError(f"{path} has no Pooling module")
    return Pooling(kind, normalize)


def _read_modules(path: Path) -> list[tuple[str, str]]:
    """The last part of each module's type, and its folder."""
    try:
        modules: Any = json.loads(path.read_text(encoding="utf-8"))
        found = [(str(m["type"]).rpartition(".")[2], str(m["path"])) for m in modules]
    except (OSError, ValueError, LookupError, TypeError) as error:
        raise ConfigError(f"{path} is not a list of modules: {error}") from error
    for _, place in found:
        if Path(place).is_absolute() or ".." in Path(place).parts:
            raise ConfigError(f"{path} names the folder {place!r}, which lies outside its own")
    return found


def _read_kind(path: Path) -> Literal["last", "mean"]:
    config = ConfigJson.read(path)
    modes = [mode for mode in config if mode.startswith("pooling_mode_")]
    chosen = [mode for mode in modes if config.flag(mode, False)]
    if len(chosen) != 1 or chosen[0] not in _KINDS:
        raise ConfigError(
            f"{path} chooses {', '.join(chosen) or 'no pooling mode'}, but must choose one of "
            f"{', '.join(_KINDS)}"
        )
    return _KINDS[chosen[0]]
