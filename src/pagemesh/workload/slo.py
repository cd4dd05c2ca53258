"""What a good request keeps to: `--goodput`."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields

from pagemesh.config.environment import require

_MAX_MS = 1e13


@dataclass(frozen=True, slots=True)
class Slo:
    """Limits in seconds; infinite where nothing is asked."""

    ttft: float = math.inf
    """To the first token."""
    tpot: float = math.inf
    """Mean for each token behind it."""
    e2el: float = math.inf
    """To the last token."""


_NAMES = tuple(field.name for field in fields(Slo))


def parse_slo(limits: Sequence[str]) -> Slo:
    """From name:milliseconds for each limit; ConfigError naming the one that is none."""
    require(len(limits) > 0, "--goodput", limits, "one or more limits")
    found: dict[str, float] = {}
    for limit in limits:
        name, _, text = limit.partition(":")
        milliseconds = _number(text)
        require(
            name in _NAMES and 0 < milliseconds <= _MAX_MS,
            "--goodput",
            limit,
            f"name:milliseconds of one of {', '.join(_NAMES)}, with more than 0 and at most {_MAX_MS:g}",
        )
        require(name not in found, "--goodput", limit, f"the only limit of {name}")
        found[name] = milliseconds / 1000
    return Slo(**found)


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return math.nan
