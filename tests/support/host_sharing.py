"""A device's memory as other processes can open it, played by memory of the host without a name."""

from __future__ import annotations

import mmap
import os
from dataclasses import dataclass, field

import torch

from pagemesh.engine.cuda.peer_pools import Exported
from pagemesh.kv_memory.peer import unreachable
from pagemesh.kv_memory.staged import DeviceMemoryName


@dataclass(eq=False)
class HostShared:
    owner: HostSharing
    memory: torch.Tensor

    def close(self) -> None:
        self.owner.opened.remove(self)


@dataclass
class HostSharing:
    """Implements `MemorySharing`."""

    exports: bool = True
    reaches: bool = True
    """Whether the memory of other devices is within reach."""
    opened: list[HostShared] = field(default_factory=list)
    num_opened: int = 0

    def export(self, memory: torch.Tensor) -> Exported | None:
        if not self.exports:
            return None
        # torch moves it into memory with a descriptor, under the tensors that look at it.
        descriptor, _ = memory.untyped_storage()._share_fd_cpu_()
        return Exported(str(descriptor).encode(), int(memory.storage_offset()) * memory.itemsize)

    def open(self, name: DeviceMemoryName, num_bytes: int) -> HostShared:
        if not self.reaches:
            raise unreachable("the devices have no peer access")
        path = f"/proc/{name.process_id}/fd/{name.handle.decode()}"
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
            try:
                mapping = mmap.mmap(descriptor, name.offset + num_bytes)
            finally:
                os.close(descriptor)
        except (OSError, ValueError) as error:
            raise unreachable(f"{path}: {error}") from error
        memory = torch.frombuffer(mapping, dtype=torch.uint8, offset=name.offset, count=num_bytes)
        shared = HostShared(self, memory)
        self.opened.append(shared)
        self.num_opened += 1
        return shared
