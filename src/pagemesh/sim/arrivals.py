"""When requests come: gaps with a mean of one second, to be scaled to any rate."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Literal

ArrivalKind = Literal["poisson", "bursty", "uniform"]


def arrival_times(kind: ArrivalKind, burstiness: float, draws: random.Random) -> Iterator[float]:
    """Seconds from the beginning, without end.

    `uniform` has equal gaps, `poisson` exponential ones; `bursty` ones of a gamma distribution whose standard
    deviation is `burstiness` times its mean: many short ones, and long pauses.
    """
    now = 0.0
    while True:
        match kind:
            case "uniform":
                now += 1.0
            case "poisson":
                now += draws.expovariate(1.0)
            case "bursty":
                now += draws.gammavariate(1 / burstiness**2, burstiness**2)
        yield now
