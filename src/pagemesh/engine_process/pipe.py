"""What a worker and its engine's process say to each other: objects over a socket pair.

The pair has no name: nobody but these two processes, of which one started the other, can write to it. Objects are
written as pickle writes them, which is the one place where it is used; they are read by a reader that knows plain
values, and classes of this project that only hold values. So whoever writes to the pair can tell lies to the
other end, and not have it run anything.
"""

from __future__ import annotations

import io
import pickle
import threading
from dataclasses import dataclass, field, is_dataclass
from enum import Enum
from multiprocessing.connection import Connection
from typing import Any, Final

from pagemesh.config import (
    CacheConfig,
    HardwareConfig,
    ModelConfig,
    SchedulerConfig,
    ServerConfig,
)
from pagemesh.core.engine import EngineInfo
from pagemesh.engine.shared_cores import CorePlace
from pagemesh.errors import PagemeshError
from pagemesh.kv_memory.staged import DeviceMemoryName, StagingArea


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

    cores: CorePlace | None = None
    """Where it finds the cores that it shares with other workers; None when its threads are its own."""

    weights: int | None = None
    """Descriptor of the memory where it holds its weights once with other workers; None when they are its own."""


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


class NotUnderstoodError(OSError):
    """The other end sent something that no engine and no worker sends: it is as good as gone."""


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
        buffer = io.BytesIO()
        _Writer(buffer).dump(message)
        with self._sending:
            self._connection.send_bytes(buffer.getbuffer())

    def poll(self, timeout: float) -> bool:
        """Wait until there is something to receive, or the other end is gone, for so many seconds."""
        return self._connection.poll(timeout)

    def receive(self) -> Any:
        """Wait for one object; EOFError or OSError when the other end is gone.

        Raises NotUnderstoodError, and does nothing, for one that is more than values.
        """
        received = self._connection.recv_bytes()
        try:
            return _Reader(io.BytesIO(received)).load()
        except _NOT_PICKLED as error:
            raise NotUnderstoodError(str(error)) from error

    def close(self) -> None:
        """Let the other end know that nothing follows; later sends fail with OSError. Idempotent."""
        with self._sending:  # nobody may write to a descriptor that means something else by now
            self._connection.close()


_PACKAGE: Final = "pagemesh."

_NOT_PICKLED: Final = (
    pickle.UnpicklingError,
    AttributeError,
    ImportError,
    IndexError,
    TypeError,
    ValueError,
)
"""What a reader may raise for bytes that nobody wrote as they should be."""


class _Writer(pickle.Pickler):
    """Writes enums by their values: some Pythons (3.11.0 to 3.11.3) write a call of `getattr`, which no reader takes."""

    def reducer_override(self, obj: object) -> Any:
        return (type(obj), (obj.value,)) if isinstance(obj, Enum) else NotImplemented


class _Reader(pickle.Unpickler):
    """Knows no function, and no class that does something when it is made."""

    def find_class(self, module: str, name: str) -> Any:
        """A class that holds values; UnpicklingError for everything else."""
        found = super().find_class(module, name) if module.startswith(_PACKAGE) else None
        if isinstance(found, type) and found.__module__ == module and _holds_values(found):
            return found
        raise pickle.UnpicklingError(f"{module}.{name} is nothing that engines and workers send")


def _holds_values(kind: type) -> bool:
    if is_dataclass(kind):
        return True
    return issubclass(kind, (Enum, PagemeshError)) or (
        issubclass(kind, tuple) and hasattr(kind, "_fields")
    )
