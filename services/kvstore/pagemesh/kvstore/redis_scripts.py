"""The Lua scripts of the index on Redis: each of its calls is one script or several, each of which happens
as a whole."""

from __future__ import annotations

import asyncio
from importlib import resources
from typing import Any

from pagemesh.kvstore.redis_client import RedisStore

_PRELUDES = {
    "store": ("places", "masks", "owners", "clock", "evict"),
    "remove": ("places", "masks", "owners"),
    "lookup": ("places", "clock"),
    "count_held": ("places", "masks", "owners"),
    "held": ("places", "masks", "owners"),
    "add": ("places", "slots"),
    "drop": ("places", "slots"),
    "clear": ("places", "slots"),
    "facts": ("places", "slots"),
    "sweep": ("places", "masks", "slots", "clock", "evict"),
    "usage": ("places",),
}
"""What comes in front of each script."""

NAME_BITS_FOR_BUCKETS = 24
"""Buckets are told by the first bits of a name, so many at most."""


TURNS = 2
"""Scripts about the blocks of workers at once. When all workers send snapshots, those that wait must not wait in
Redis: lookups would wait behind them, and the last of them until Redis seems to be away."""


class RedisScripts:
    """The scripts of one index. They use keys that they do not announce, which a Redis cluster refuses."""

    def __init__(self, store: RedisStore, prefix: str, bucket_bits: int) -> None:
        """All keys begin with `prefix`; blocks are spread over 2 ** `bucket_bits` hashes."""
        divisor = 2 ** (NAME_BITS_FOR_BUCKETS - bucket_bits)
        settings = f"local prefix, divisor = '{prefix}', {divisor}"
        self._store = store
        self.turns = asyncio.Semaphore(TURNS)
        """Held by scripts about many blocks, in the order in which they ask for it."""
        self._scripts = {
            name: store.redis.register_script(
                "\n".join((settings, *(read_script("scripts", each) for each in (*preludes, name))))
            )
            for name, preludes in _PRELUDES.items()
        }

    def require(self) -> None:
        """Raise UnavailableError while the server is away."""
        self._store.require()

    async def run(self, name: str, *arguments: bytes | str | int) -> Any:
        """A script's answer. Raises UnavailableError when there is none in time."""
        async with self._store.answering():
            return await self._scripts[name](args=arguments)

    async def run_in_turn(self, name: str, *arguments: bytes | str | int) -> Any:
        """Likewise, for scripts about the blocks of a worker: few are under way at once, in the order of the calls."""
        async with self.turns:
            return await self.run(name, *arguments)


def read_script(folder: str, name: str) -> str:
    """The text of a script that comes with the package."""
    return resources.files("pagemesh.kvstore").joinpath(folder, f"{name}.lua").read_text("utf-8")
