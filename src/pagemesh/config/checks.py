"""How a wrong setting is refused."""

from __future__ import annotations

import json
from typing import Any

from pagemesh.errors import ConfigError


def require(condition: bool, flag: str, value: object, expected: str) -> None:
    """Raise ConfigError naming a flag and its value unless the condition holds."""
    if not condition:
        raise ConfigError(f"{flag} is {value!r}, but must be {expected}")


def read_object(flag: str, text: str) -> dict[str, Any]:
    """A JSON object that a setting is; ConfigError naming flag and value for anything else."""
    try:
        value = json.loads(text)
    except ValueError as error:
        raise ConfigError(f"{flag} is {text!r}, which is not JSON: {error}") from error
    if not isinstance(value, dict):
        raise ConfigError(f"{flag} is {text!r}, but must be a JSON object")
    return value


def require_share(utilization: float) -> None:
    """Raise ConfigError unless --gpu-memory-utilization is a share."""
    require(0 < utilization <= 1, "--gpu-memory-utilization", utilization, "in (0, 1]")


def require_seconds(flag: str, seconds: float, most: float) -> None:
    """Raise ConfigError unless a time is more than 0 and at most `most` seconds."""
    require(0 < seconds <= most, flag, seconds, f"more than 0 and at most {most:g} seconds")
