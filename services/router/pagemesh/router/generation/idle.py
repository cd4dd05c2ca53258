"""Notices silence, so that a client can be told that its request is alive."""

from __future__ import annotations

import asyncio
from collections.abc import Callable


class IdleClock:
    """Calls back after `first` seconds without a sign, later after every `then` seconds without one."""

    def __init__(self, on_idle: Callable[[], None], first: float, then: float) -> None:
        self._on_idle = on_idle
        self._patience = first
        self._then = then
        self._loop = asyncio.get_running_loop()
        self._last_sign = self._loop.time()
        self._timer = self._loop.call_later(first, self._check)

    def sign(self) -> None:
        """Something was told to the client."""
        # One timer that looks again is cheaper than moving a timer for every token.
        self._last_sign = self._loop.time()
        self._patience = self._then

    def close(self) -> None:
        """Call back no more. Idempotent."""
        self._timer.cancel()

    def _check(self) -> None:
        if self._loop.time() >= self._last_sign + self._patience:
            self.sign()
            self._on_idle()
        self._timer = self._loop.call_at(self._last_sign + self._patience, self._check)
