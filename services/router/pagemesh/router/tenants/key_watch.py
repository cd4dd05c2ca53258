"""Has a router heed its key file as it changes."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Final

import structlog

from pagemesh.errors import ConfigError
from pagemesh.router.tenants.registry import Registry
from pagemesh.telemetry.metrics import Metrics
from pagemesh.telemetry.metrics.admission import KEY_FILE_READS

INTERVAL_S: Final = 0.5
"""Between two looks at the file. Its content is compared, not its time, which may not change with it; it has
some kilobytes."""

_log = structlog.get_logger(__name__)


class KeyWatch:
    """start → close. Belongs to one event loop."""

    def __init__(self, registry: Registry, metrics: Metrics) -> None:
        self._registry = registry
        reads = metrics.counter(KEY_FILE_READS)
        self._taken, self._refused = reads.labels("taken"), reads.labels("refused")
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin to watch, if there is a file."""
        if self._registry.key_file is not None:
            work = self._watch(self._registry.key_file)
            self._task = asyncio.create_task(work, name="key-watch")

    async def close(self) -> None:
        """Stop. Idempotent."""
        if self._task is not None:
            self._task.cancel()
            # Ends at once; a thread that reads a file on a network that hangs is not waited for.
            await asyncio.wait({self._task})
            self._task = None

    async def _watch(self, path: Path) -> None:
        last: bytes | str | None = None
        while True:
            found = await asyncio.to_thread(_content, path)
            if found != last:
                # Said once, however long a file that cannot be used stays there.
                last = found
                self._take(path, found)
            await asyncio.sleep(INTERVAL_S)

    def _take(self, path: Path, found: bytes | str) -> None:
        try:
            if isinstance(found, str):
                raise ConfigError(found)
            num_tenants = self._registry.load(found)
        except ConfigError as error:
            self._refused.inc()
            _log.error("key file refused", path=str(path), error=error.message)
            return
        self._taken.inc()
        _log.info("key file read", path=str(path), num_tenants=num_tenants)


def _content(path: Path) -> bytes | str:
    """What is in the file; a sentence when it cannot be read."""
    try:
        return path.read_bytes()
    except OSError as error:
        return f"cannot be read: {error.strerror}"
