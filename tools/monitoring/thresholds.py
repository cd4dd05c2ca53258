"""Where alerts fire: numbers by name, which the chart has as values, and what guides to serving aim at."""

from __future__ import annotations

import re
from typing import Final, NamedTuple

_MARKER: Final = re.compile(r"@(\w+)@")


class Threshold(NamedTuple):
    """One number."""

    value: float
    what: str
    target: str = ""
    """What guides aim at, where they do: far below is where users are content, the number is where something is wrong."""


THRESHOLDS: Final = {
    "firstTokenSeconds": Threshold(10, "Seconds until the first token, of the slowest 5 %.", "1 s"),
    "betweenTokensSeconds": Threshold(
        0.5, "Seconds between two tokens, of the slowest 5 %.", "0.1 s"
    ),
    "requestSeconds": Threshold(30, "Seconds until the last token, of the slowest 1 %."),
    "waitingRequests": Threshold(50, "Waiting requests of a model that are a warning."),
    "waitingRequestsCritical": Threshold(100, "Waiting requests of a model that are critical."),
    "successRatio": Threshold(0.995, "Share of requests that must not end with an error."),
    "kvCacheUsage": Threshold(0.95, "Share of a decode worker's KV blocks in use."),
    "gpuMemoryUsage": Threshold(0.95, "Share of a GPU's memory in use."),
    "preemptionsPerMinute": Threshold(
        10, "Preemptions of a decode worker in a minute.", "fewer than 10 a minute"
    ),
}


def threshold(name: str) -> str:
    """Stands for a number in an expression until `filled`."""
    assert name in THRESHOLDS, name
    return f"@{name}@"


def filled(text: str) -> str:
    """With the numbers."""
    return _MARKER.sub(lambda marker: f"{THRESHOLDS[marker[1]].value:g}", text)


def named_in(text: str) -> list[str]:
    """Names of the thresholds that stand in a text."""
    return _MARKER.findall(text)
