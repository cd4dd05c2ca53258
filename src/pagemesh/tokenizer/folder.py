"""Reads the small JSON files that lie beside a tokenizer, with errors that name file and key."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from pagemesh.errors import ConfigError


def read_json(folder: Path, name: str) -> dict[str, Any]:
    """The JSON object in `folder/name`; empty when there is no such file."""
    path = folder / name
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return {}
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} cannot be read: {error}") from error
    try:
        value = json.loads(text)
    except ValueError as error:
        raise ConfigError(f"{path} is not JSON: {error}") from error
    if not isinstance(value, dict):
        raise ConfigError(f"{path} holds {type(value).__name__}, but must hold a JSON object")
    return value
