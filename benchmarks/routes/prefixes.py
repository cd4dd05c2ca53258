"""Requests that share prefixes, and when they come; the same ones for whoever is measured."""

from __future__ import annotations

import random
from collections.abc import Sequence
from itertools import accumulate
from typing import Final, NamedTuple

from workload import FIRST_TOKEN, Request

NUM_PREFIXES: Final = 60
PREFIX_TOKENS: Final = 1024
OWN_TOKENS: Final = (64, 128)
"""Least and most tokens of a prompt behind its prefix."""
OUTPUT_TOKENS: Final = (16, 32)
"""Least and most tokens of an answer."""
VOCAB_SIZE: Final = 32_000


class Arrivals(NamedTuple):
    """Requests that come at given times."""

    requests: Sequence[Request]
    due: Sequence[float]
    """Seconds from the start."""


class Workload:
    """One sequence of requests, drawn from a seed. Prompts of different `world`s share nothing.

    A world is a run of the sequence whose prompts nobody has seen: the caches keep those of the run before.
    """

    def __init__(self, seed: int) -> None:
        self._seed = seed

    def warm_up(self, world: int) -> list[Request]:
        """Each prefix once, in random order."""
        draws = random.Random(f"{self._seed} warm-up")
        order = draws.sample(range(NUM_PREFIXES), NUM_PREFIXES)
        return self._requests(draws, order, world)

    def stream(self, world: int, num_requests: int) -> list[Request]:
        """Requests for prefixes that are drawn with equal chances."""
        draws = random.Random(f"{self._seed} stream")
        order = [draws.randrange(NUM_PREFIXES) for _ in range(num_requests)]
        return self._requests(draws, order, world)

    def due(self, num_requests: int, rate: float) -> list[float]:
        """Seconds from the start at which a Poisson process with so many a second has requests come."""
        draws = random.Random(f"{self._seed} due")
        return list(accumulate(draws.expovariate(1.0) / rate for _ in range(num_requests)))

    def _requests(self, draws: random.Random, order: Sequence[int], world: int) -> list[Request]:
        prefixes = [_tokens(f"{self._seed} {world} {number}") for number in range(NUM_PREFIXES)]
        requests = []
        for number in order:
            own = [
                draws.randrange(FIRST_TOKEN, VOCAB_SIZE) for _ in range(draws.randint(*OWN_TOKENS))
            ]
            requests.append(Request(prefixes[number] + own, draws.randint(*OUTPUT_TOKENS)))
        return requests


def _tokens(seed: str) -> list[int]:
    draws = random.Random(seed)
    return [draws.randrange(FIRST_TOKEN, VOCAB_SIZE) for _ in range(PREFIX_TOKENS)]
