"""How long an outgoing call may take: its own limit, but never longer than the caller still waits."""

from __future__ import annotations

from typing import Protocol

from pagemesh.errors import DeadlineError


class HasTimeRemaining(Protocol):
    """The part of a servicer context that knows the caller's deadline."""

    def time_remaining(self) -> float | None:
        """Seconds until the caller gives up; None when it set no deadline."""
        ...


def time_left(own_limit: float, caller: HasTimeRemaining) -> float:
    """Seconds for a call made on behalf of `caller`; raises DeadlineError when there are none left."""
    remaining = caller.time_remaining()
    if remaining is None:
        return own_limit
    if remaining <= 0:
        raise DeadlineError("the caller's deadline is over")
    return min(own_limit, remaining)
