"""What is needed of a device so that two processes can use the same memory of it."""

from __future__ import annotations

from typing import NamedTuple, Protocol

import torch

from pagemesh.kv_memory.device_memory import DeviceMemoryName


class Exported(NamedTuple):
    """Where memory is found by other processes, see `DeviceMemoryName`."""

    handle: bytes
    offset: int


class OpenedMemory(Protocol):
    """Memory of another process."""

    @property
    def memory(self) -> torch.Tensor:
        """uint8 [N], on the device of whoever opened it; until `close`."""
        ...

    def close(self) -> None:
        """Let go of it; nothing that was asked of the device uses it any more. Idempotent."""
        ...


class MemorySharing(Protocol):
    """One device's memory, and what it can reach of others'. Any thread."""

    def export(self, memory: torch.Tensor) -> Exported | None:
        """Let other processes open it; None when they cannot. It must not be freed any more then."""
        ...

    def open(self, name: DeviceMemoryName, num_bytes: int) -> OpenedMemory:
        """So many bytes of another process's memory, from the offset on.

        Raises UnavailableError when the device does not reach it, or there is not so much.
        """
        ...
