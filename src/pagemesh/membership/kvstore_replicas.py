"""Which of the kvstore's replicas a peer talks to, and which one it tries next."""

from __future__ import annotations

import random

from pagemesh.addresses import parse_addresses


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
