"""Which of the kvstore's replicas a peer talks to, which one it tries next, and how long it waits before that."""

from __future__ import annotations

import random
from typing import Final

from pagemesh.addresses import parse_addresses

FIRST_S: Final = 0.05
LONGEST_S: Final = 0.5
"""A kvstore that was started again is to know everything within two seconds."""


class Backoff:
    """Waits that double from `FIRST_S` to `LONGEST_S`, each cut by up to half at random.

    The random cut keeps the peers of a restarted kvstore from coming back at the same moment.
    """

    def __init__(self) -> None:
        self._next = FIRST_S

    def next_delay(self) -> float:
        """Seconds to wait now; the following wait will be twice as long."""
        delay = self._next
        self._next = min(LONGEST_S, self._next * 2)
        return delay * random.uniform(0.5, 1.0)

    def reset(self) -> None:
        """Start again with the shortest wait, after an attempt that worked."""
        self._next = FIRST_S


class KvStoreReplicas:
    """The replicas in a ring. A peer stays with one until that goes, and never returns by itself.

    It begins with a random one, or the one at `first`, so that peers spread over all of them.
    """

    def __init__(self, addresses: str, first: int | None = None) -> None:
        """`addresses` is "host:port", or several with commas in between; else ConfigError."""
        self.addresses = parse_addresses("--kvstore", addresses)
        self._present = random.randrange(len(self.addresses)) if first is None else first

    @property
    def present(self) -> str:
        """host:port of the one to talk to."""
        return self.addresses[self._present]

    def move_on(self) -> bool:
        """The present one is gone: take the next; whether there is another one."""
        self._present = (self._present + 1) % len(self.addresses)
        return len(self.addresses) > 1
