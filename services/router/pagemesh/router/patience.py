"""Patience with workers that are out of reach for a moment, before a request has been on any of them."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final

from pagemesh.errors import UnavailableError
from pagemesh.router.migration import RETRY_INTERVAL_S

PATIENCE_S: Final = 1.0
"""Seconds in which a connection that broke has been opened again, if its worker is there."""


async def send_patiently(send: Callable[[], Awaitable[None]]) -> None:
    """Try to place and send a request until a worker takes it.

    On a busy machine a connection may break for nothing, and is open again at once; what comes in between is
    not refused for it. Raises the UnavailableError when nobody takes it for `PATIENCE_S`.
    """
    loop = asyncio.get_running_loop()
    until = loop.time() + PATIENCE_S
    while True:
        try:
            return await send()
        except UnavailableError:
            if loop.time() >= until:
                raise
        await asyncio.sleep(RETRY_INTERVAL_S)
