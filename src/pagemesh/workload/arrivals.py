"""When requests come: gaps with a mean of one second, to be scaled to any rate."""

from __future__ import annotations

import random
from collections.abc import Iterator


def arrival_times(burstiness: float, draws: random.Random) -> Iterator[float]:
    """Seconds from the beginning, without end.

    Gaps are gamma distributed with `burstiness` as shape, as those of `vllm bench serve`: their standard deviation
    is 1 / sqrt(burstiness) of their mean.
    """
    now = 0.0
    while True:
        now += draws.gammavariate(burstiness, 1 / burstiness)
        yield now
