"""Who looks at the mesh at the moment, and what they are sent."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from typing import Any, Final

from pagemesh.errors import OverloadedError
from pagemesh.router.openai.sse import data_frame

PERIOD_S: Final = 1.0
MAX_WATCHERS: Final = 32
"""Each costs the router a snapshot a second."""


class Watchers:
    """Streams of snapshots, which end with their clients, or when the router stops."""

    def __init__(
        self,
        snapshot: Callable[[int], dict[str, Any]],
        revision: Callable[[], int],
        period: float = PERIOD_S,
    ) -> None:
        """`snapshot` has what changed since a revision."""
        self._snapshot = snapshot
        self._revision = revision
        self._period = period
        self._num_watchers = 0
        self._closed = asyncio.Event()

    @property
    def num_watchers(self) -> int:
        """Clients that look."""
        return self._num_watchers

    async def frames(self) -> AsyncGenerator[bytes, None]:
        """Events for one client, the first at once; OverloadedError when too many look already."""
        if self._num_watchers >= MAX_WATCHERS:
            raise OverloadedError(f"{MAX_WATCHERS} clients look at this router's mesh, its limit")
        self._num_watchers += 1
        try:
            seen = 0
            while not self._closed.is_set():
                revision = self._revision()
                yield data_frame(self._snapshot(seen))
                seen = revision
                try:
                    await asyncio.wait_for(self._closed.wait(), self._period)
                except TimeoutError:
                    continue
        finally:
            self._num_watchers -= 1

    async def close(self) -> None:
        """End all streams, so that nobody waits for them. Idempotent."""
        self._closed.set()
