"""The nouns of queueing: a request's turn, and who is told that it has come."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from pagemesh.errors import PagemeshError


class Waiter(Protocol):
    """Whoever a turn is for."""

    def proceed(self) -> None:
        """The turn has come."""
        ...

    def fail(self, error: PagemeshError) -> None:
        """It never will."""
        ...


@dataclass(slots=True, eq=False)
class Turn:
    """One request's."""

    tenant: str
    """Who shares with others; empty where nobody is told apart."""

    weight: float
    """Of the tenant: with twice as much, it gets twice as much when all want more than there is."""

    priority: int
    """Lower goes first: below 0 in front of the tenant's own requests, above 0 behind everybody's."""

    num_seats: int
    """Sequences that have not ended."""

    num_tokens: int
    """That all of them are expected to take, prompts and answers."""

    deadline: float
    """When it is given up, in seconds of the dispatcher's clock."""

    joined_at: float = 0.0
    """When it began to wait, on the same clock."""

    came_at: float = 0.0
    """When it was over with that."""

    has_come: bool = False
    """Whether it may be sent to workers."""

    waiter: Waiter | None = None
    """Who is told; there is one before the event loop goes on."""

    on_seat_free: Callable[[Turn], None] | None = None
    """Told of each sequence that ends, once the turn has come."""

    num_used_tokens: int | None = None
    """What it took in fact, without prompts that were cached; None as long as nobody knows."""

    number: int = 0
    """In order of arrival in the queue; 0 for one that never waited."""

    @property
    def queue_seconds(self) -> float:
        """How long it waited until it came; 0 for one that never had to, or still does."""
        return self.came_at - self.joined_at if self.number and self.has_come else 0.0

    def end_seat(self) -> None:
        """A sequence has ended on its worker, whenever the client is told."""
        if self.on_seat_free is not None and self.num_seats:
            self.on_seat_free(self)

    @property
    def worker_priority(self) -> int:
        """Lower goes first on a worker, where tenants are not told apart."""
        return self.level if self.tenant else self.priority

    @property
    def level(self) -> int:
        """Of those who wait, a lower one's go first, whoever they belong to.

        Nobody gets in front of others by what a request says of itself; behind them, anybody may.
        """
        return max(0, self.priority)

    @property
    def order(self) -> tuple[int, int]:
        """Among the requests of one tenant on one level."""
        return self.priority, self.number
