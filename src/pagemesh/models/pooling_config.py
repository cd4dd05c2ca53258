"""How a model's embeddings are pooled, from the files that sentence-transformers keeps beside it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, Literal

from pagemesh.core.engine import Pooling
from pagemesh.errors import ConfigError
from pagemesh.models.config_json import ConfigJson

MODULES_FILE: Final = "modules.json"

DEFAULT_POOLING: Final = Pooling("last", normalize=True)
"""Of decoders whose folder says nothing, as in vLLM."""

_Kind = Literal["last", "mean", "cls"]

_KINDS: Final[dict[str, _Kind]] = {"lasttoken": "last", "mean": "mean", "cls": "cls"}
"""By the names of sentence-transformers."""

_FLAGS: Final = {
    "pooling_mode_lasttoken": "lasttoken",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_cls_token": "cls",
}
"""Before its version 6 there was a flag for each mode."""

_CAUSAL_KINDS: Final = {mode: kind for mode, kind in _KINDS.items() if kind != "cls"}
"""A decoder's first token sees nothing but itself."""


def read_pooling(
    folder: Path, default: Pooling = DEFAULT_POOLING, *, causal: bool = True
) -> Pooling:
    """What modules.json and the folder of its pooling module say; without them, `default`.

    ConfigError for modules and ways of pooling that would change the vectors and are not supported.
    """
    path = folder / MODULES_FILE
    if not path.is_file():
        return default
    modules = _read_modules(path)
    kind: _Kind | None = None
    normalize = False
    for name, place in modules[1:]:
        if name == "Pooling" and kind is None:
            kinds = _CAUSAL_KINDS if causal else _KINDS
            kind = _read_kind(folder / place / "config.json", kinds)
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


def _read_kind(path: Path, kinds: Mapping[str, _Kind]) -> _Kind:
    config = ConfigJson.read(path)
    mode = config.get("pooling_mode")
    if mode is None:
        flags = [flag for flag in config if flag.startswith("pooling_mode_")]
        chosen = [_FLAGS.get(flag, flag) for flag in flags if config.flag(flag, False)]
    else:
        chosen = [str(name) for name in (mode if isinstance(mode, list) else [mode])]
    if len(chosen) != 1 or chosen[0] not in kinds:
        raise ConfigError(
            f"{path} chooses the pooling {' and '.join(chosen) or 'of nothing'}, but must choose one "
            f"of {', '.join(kinds)}"
        )
    return kinds[chosen[0]]
