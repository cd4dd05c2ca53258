"""How many requests the router keeps that are on no worker: bounded in all, and for each tenant."""

from __future__ import annotations

from collections import Counter
from typing import Final

SHARE: Final = 4.0
"""Requests that a tenant may have waiting for each free place, times its weight: alone, four fifths of all places,
so that whoever comes next finds some. (Choudhury and Hahne, "Dynamic queue length thresholds", 1998.)"""


class WaitingRoom:
    """Counts them, from their arrival until a worker has them; again, when it has not any more, until they are gone."""

    def __init__(self, num_places: int) -> None:
        self.num_places = num_places
        self.num_waiting = 0
        self._of_tenant: Counter[str] = Counter()

    def has_place(self, tenant: str, weight: float) -> bool:
        """Whether one more may wait; who has no name shares with nobody."""
        num_free = self.num_places - self.num_waiting
        return num_free > 0 and (
            not tenant or self._of_tenant[tenant] < max(1.0, SHARE * weight * num_free)
        )

    def num_waiting_of(self, tenant: str) -> int:
        """A tenant's."""
        return self._of_tenant[tenant]

    def enter(self, tenant: str) -> None:
        """One more is on no worker."""
        self.num_waiting += 1
        self._of_tenant[tenant] += 1

    def leave(self, tenant: str) -> None:
        """One of these is on a worker, or over."""
        self.num_waiting -= 1
        self._of_tenant[tenant] -= 1
        if not self._of_tenant[tenant]:
            del self._of_tenant[tenant]
