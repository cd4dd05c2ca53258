"""How far the running requests will grow, so that no more are admitted than the cache will hold."""

from __future__ import annotations

from typing import Final, Protocol

from pagemesh.scheduler.request import Request

PRIOR_LENGTH: Final = 256.0
"""Expected tokens of an answer before any has ended: about what chats have."""

MEMORY: Final = 0.98
"""What a measured length still counts when the next answer ends: about the last fifty decide."""

SHARE: Final = 0.2
"""Of an answer's expected length, the part for which every running request should find room.

Not the whole of it: before all of them are as long, some have ended and given their blocks back.
Measured by `benchmarks/scheduler.py`; see docs/decisions/0014-admission-leaves-room-to-grow.md.
"""


class GrowthForecast(Protocol):
    """Predicts how much room requests need besides what they have, from the answers that ended."""

    def observe(self, num_tokens: int) -> None:
        """An answer ended by itself, with so many tokens."""
        ...

    def num_growth_tokens(self, request: Request) -> int:
        """Tokens for which room should be left; at most what the request may still generate."""
        ...


class MeanLength:
    """Implements `GrowthForecast`: a share of the decayed mean length of answers, for each the same.

    How long an answer is already says little about how long it will go on: lengths vary about as much
    as they are long.
    """

    def __init__(self) -> None:
        self._mean = PRIOR_LENGTH

    def observe(self, num_tokens: int) -> None:
        self._mean = MEMORY * self._mean + (1 - MEMORY) * num_tokens

    def num_growth_tokens(self, request: Request) -> int:
        return min(round(SHARE * self._mean), request.max_total_tokens - request.num_tokens)
