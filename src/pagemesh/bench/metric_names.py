"""The metrics that are told of, and their percentiles, as flags name them."""

from __future__ import annotations

import math
from typing import Final, NamedTuple

from pagemesh.config.environment import require


class Metric(NamedTuple):
    """One metric, under the names that vLLM's table has for it."""

    short: str
    title: str


METRICS: Final = {
    "ttft": Metric("TTFT", "Time to First Token"),
    "tpot": Metric("TPOT", "Time per Output Token (excl. 1st token)"),
    "itl": Metric("ITL", "Inter-token Latency"),
    "e2el": Metric("E2EL", "End-to-end Latency"),
    "client_queue_time": Metric("Client Queue Time", "Client-side Queueing"),
    "e2el_including_client_queue": Metric(
        "E2EL incl. Client Queue", "Queue-inclusive End-to-end Latency"
    ),
}


def parse_metrics(text: str) -> tuple[str, ...]:
    """Names from --percentile-metrics; ConfigError naming the one that is none."""
    names = tuple(name.strip() for name in text.split(","))
    for name in names:
        require(
            name in METRICS, "--percentile-metrics", name, f"one or more of {', '.join(METRICS)}"
        )
    return names


def parse_percentiles(text: str) -> tuple[float, ...]:
    """Numbers from --metric-percentiles; ConfigError naming the one that is none."""
    found = []
    for word in text.split(","):
        try:
            percentile = float(word)
        except ValueError:
            percentile = math.nan
        require(0 <= percentile <= 100, "--metric-percentiles", word, "numbers from 0 to 100")
        found.append(percentile)
    return tuple(found)


def percentile_name(percentile: float) -> str:
    """99 and 99.9, as fields and lines have them."""
    return f"{percentile:g}"
