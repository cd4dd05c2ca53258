"""What a worker and its engine's process say to each other, as pickled objects over a socket pair."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from typing import Any

from pagemesh.config import (
    CacheConfig,
    HardwareConfig,
    ModelConfig,
    SchedulerConfig,
    ServerConfig,
)
from pagemesh.engine.device_memory import DeviceMemoryName
from pagemesh.engine.interface import EngineInfo
from pagemesh.engine.staged_kv import StagingArea
from pagemesh.errors import PagemeshError


@dataclass(frozen=True, slots=True)
class EngineSettings:
    """The first message to an engine's process."""

    model: ModelConfig
    cache: CacheConfig
    scheduler: SchedulerConfig

    server: ServerConfig
    """For its logs."""

    role: str
    """Name of the worker's service, for its logs."""

    hardware: HardwareConfig = field(default_factory=HardwareConfig)


@dataclass(frozen=True, slots=True)
class Command:
    """A call of one of the `Engine`'s methods, to the engine's process."""

    method: str
    arguments: tuple[Any, ...] = ()


@dataclass(frozen=True, slots=True)
class Pinned:
    """How a pin ended, from the engine's process."""

    request_id: str
    outcome: tuple[int, ...] | PagemeshError


@dataclass(frozen=True, slots=True)
class Loaded:
    """The first message from an engine's process whose engine can be started."""

    info: EngineInfo

    staging: StagingArea | None
    """The buffers in the shared memory through which KV is read and written; None when the memory is the
    KV itself."""

    memory: DeviceMemoryName | None = None
    """How other engines find the KV where it is on a device; None when they cannot."""


class Pipe:
    """One end of the socket pair. Any thread may send; one thread receives."""

    def __init__(self, descriptor: int) -> None:
        self._connection = Connection(descriptor)
        self._sending = threading.Lock()

    def fileno(self) -> int:
        """For selectors."""
        return self._connection.fileno()

    def send(self, message: object) -> None:
        """Send one object; OSError when the other end is gone."""
        with self._sending:
            self._connection.send(message)

    def poll(self, timeout: float) -> bool:
        """Wait until there is something to receive, or the other end is gone, for so many seconds."""
        return self._connection.poll(timeout)

    def receive(self) -> Any:
        """Wait for one object; EOFError or OSError when the other end is gone."""
        return self._connection.recv()

    def close(self) -> None:
        """Let the other end know that nothing follows; later sends fail with OSError. Idempotent."""
        with self._sending:  # nobody may write to a descriptor that means something else by now
            self._connection.close()
