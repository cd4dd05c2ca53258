"""A model with other values in its config.json, or another tokenizer: a folder of links that all parts are given.

Routers and workers read a model's folder, each by itself. So what changes it is written down once, where all of them
read it, and none of them knows of it.
"""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from pagemesh.config import HubConfig
from pagemesh.errors import ConfigError
from pagemesh.gguf.model import is_gguf
from pagemesh.models.resolve import resolve_model_path

CONFIG: Final = "config.json"

_TOKENIZER_FILES: Final = (
    "tokenizer*",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.*",
    "merges.txt",
    "chat_template*",
    "additional_chat_templates",
)
"""What a tokenizer consists of, the templates that were written for its tokens among it."""


@dataclass(slots=True)
class Changes:
    """What a model should have instead of what its folder says."""

    overrides: dict[str, Any] = field(default_factory=dict)
    """Values of config.json by their keys."""

    tokenizer: str | None = None
    """Folder or hub id whose tokenizer it takes."""

    def __bool__(self) -> bool:
        """Whether there are any."""
        return bool(self.overrides) or self.tokenizer is not None


def make_variant(model: str, changes: Changes, hub: HubConfig, cache: Path | None = None) -> Path:
    """The folder of a model, which may have to be downloaded, with these changes.

    It lies in `cache`, $XDG_CACHE_HOME/pagemesh/models unless told otherwise, and is the same one for the same
    changes. ConfigError when there is no such model or tokenizer, or no folder can be made.
    """
    folder = resolve_model_path(model, hub).absolute()
    if is_gguf(folder):
        raise ConfigError(
            f"--model is {model!r}, a GGUF file, which has its tokenizer and its settings within: leave out --tokenizer,"
            " --hf-overrides, --rope-scaling and --rope-theta"
        )
    files = {path.name: path for path in folder.iterdir()}
    if changes.tokenizer is not None:
        files = {name: path for name, path in files.items() if not _is_of_tokenizer(path)}
        tokenizer = _tokenizer_folder(changes.tokenizer, hub)
        files |= {path.name: path for path in tokenizer.iterdir() if _is_of_tokenizer(path)}
    text = json.dumps(_overridden(files.pop(CONFIG), changes.overrides), indent=2, sort_keys=True)
    links = "".join(f"{name}\0{files[name]}\0" for name in sorted(files))
    digest = hashlib.sha256(f"{links}{text}".encode()).hexdigest()[:16]
    variant = (cache or _cache()) / f"{folder.name}-{digest}"
    if not variant.is_dir():
        try:
            _write(variant, files, text)
        except OSError as error:
            raise ConfigError(
                f"{variant} cannot be made for the changed model: {error.strerror}; XDG_CACHE_HOME names another place"
            ) from error
    return variant


def _is_of_tokenizer(path: Path) -> bool:
    return any(path.match(pattern) for pattern in _TOKENIZER_FILES)


def _tokenizer_folder(source: str, hub: HubConfig) -> Path:
    try:
        # The model's revision is not the tokenizer's.
        where = HubConfig(download_dir=hub.download_dir)
        return resolve_model_path(source, where, need="tokenizer").absolute()
    except ConfigError as error:
        raise ConfigError(error.message.replace("--model", "--tokenizer")) from error


def _overridden(path: Path, overrides: Mapping[str, Any]) -> dict[str, Any]:
    """The object in config.json with other values; objects of parts, such as text_config, get members as well."""
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path} cannot be read: {error}") from error
    for key, value in _in_one_place(config, overrides).items():
        if (
            key.endswith("_config")
            and isinstance(value, dict)
            and isinstance(config.get(key), dict)
        ):
            config[key] |= value
        else:
            config[key] = value
    return dict(config)


def _in_one_place(config: Mapping[str, Any], overrides: Mapping[str, Any]) -> dict[str, Any]:
    """The overrides with those of RoPE where the file has its own: transformers 5 moved them into rope_parameters."""
    found, rope = dict(overrides), config.get("rope_parameters")
    if not isinstance(rope, dict) or "rope_parameters" in found:
        return found
    scaling = found.pop("rope_scaling", None)
    if isinstance(scaling, dict):
        # The base stays, whatever stretches the frequencies.
        rope = {key: rope[key] for key in ("rope_theta",) if key in rope} | scaling
    if "rope_theta" in found:
        rope = rope | {"rope_theta": found.pop("rope_theta")}
    return found if rope == config["rope_parameters"] else found | {"rope_parameters": rope}


def _cache() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "pagemesh/models"


def _write(variant: Path, files: Mapping[str, Path], config: str) -> None:
    """All or nothing: several meshes may want the same one at once."""
    variant.parent.mkdir(parents=True, exist_ok=True)
    draft = Path(tempfile.mkdtemp(prefix=f"{variant.name}.", dir=variant.parent))
    for name, path in files.items():
        (draft / name).symlink_to(path)
    (draft / CONFIG).write_text(config, encoding="utf-8")
    draft.chmod(0o755)
    try:
        draft.rename(variant)
    except OSError:
        if not variant.is_dir():
            raise
        # Another one was faster.
        for each in draft.iterdir():
            each.unlink()
        draft.rmdir()
