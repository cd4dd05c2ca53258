"""Waiting for a condition instead of sleeping."""

from __future__ import annotations

import asyncio
from collections.abc import Callable


async def wait_until(condition: Callable[[], bool], what: str, within: float = 30.0) -> None:
    """Return as soon as the condition holds; fail when it does not within `within` seconds."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + within
    while not condition():
        assert loop.time() < deadline, f"not within {within:g} s: {what}"
        await asyncio.sleep(0.002)
