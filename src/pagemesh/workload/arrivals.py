"""When requests come."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator
from itertools import islice


def arrival_times(burstiness: float, draws: random.Random) -> Iterator[float]:
    """Seconds from the beginning, without end: gaps with a mean of one second, to be scaled to any rate.

    Gaps are gamma distributed with `burstiness` as shape, as those of `vllm bench serve`: their standard deviation
    is 1 / sqrt(burstiness) of their mean.
    """
    now = 0.0
    while True:
        now += draws.gammavariate(burstiness, 1 / burstiness)
        yield now


def due_times(num_requests: int, rate: float, burstiness: float, seed: int) -> list[float]:
    """Seconds from the beginning, in order; all 0 at an infinite rate.

    Gaps are drawn, and then stretched so that the last request comes when it should at exactly that rate: else runs
    with different seeds would differ in their load by as much as the sum of the gaps does.
    """
    if rate == math.inf:
        return [0.0] * num_requests
    times = list(islice(arrival_times(burstiness, random.Random(seed)), num_requests))
    scale = num_requests / rate / times[-1] if times[-1] else 0.0
    return [scale * time for time in times]
