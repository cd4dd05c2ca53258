"""Envoy's admin interface on its unix socket."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path

_POLL_INTERVAL = 0.05
_ACTIVE = "http.gateway.downstream_rq_active"


async def drain(admin_socket: Path, patience: float) -> None:
    """Have Envoy accept nothing new, and wait until no request is left, `patience` seconds at most.

    An Envoy that does not answer is taken as drained.
    """
    try:
        async with asyncio.timeout(patience):
            await _call(admin_socket, "POST", "/drain_listeners")
            # Envoy tells nobody when the last request ends.
            while await _num_active_requests(admin_socket) > 0:  # noqa: ASYNC110
                await asyncio.sleep(_POLL_INTERVAL)
    except (OSError, TimeoutError):
        return


async def _num_active_requests(admin_socket: Path) -> int:
    answer = await _call(admin_socket, "GET", f"/stats?filter=^{_ACTIVE}$")
    found = re.search(rf"{_ACTIVE}: (\d+)", answer)
    return int(found[1]) if found else 0


async def _call(admin_socket: Path, method: str, path: str) -> str:
    """The whole answer, headers included."""
    reader, writer = await asyncio.open_unix_connection(admin_socket)
    try:
        head = f"{method} {path} HTTP/1.1\r\nhost: envoy\r\nconnection: close\r\n\r\n"
        writer.write(head.encode())
        return (await reader.read()).decode()
    finally:
        writer.close()
