"""Pinned host memory: for copies in flight, for swapped blocks, and for KV that is sent to other processes."""

from __future__ import annotations

import weakref
from dataclasses import dataclass, field
from typing import Final, Self

import numpy as np
import structlog
import torch

from pagemesh.core.kv import KvLayout
from pagemesh.engine.accelerator import Accelerator, Event
from pagemesh.errors import ConfigError
from pagemesh.kv_memory.staged import map_slots, staging_area

_LEAST_BYTES: Final = 1 << 16


class PinnedBuffer:
    """A piece of pinned memory, for one copy at a time."""

    def __init__(self, memory: torch.Tensor) -> None:
        self.memory = memory
        """uint8 [N]."""
        self._copied: Event | None = None
        self._reader: weakref.ref[object] | None = None

    @property
    def is_free(self) -> bool:
        """Whether the last copy is done and nobody is there any more to read what it brought."""
        if self._copied is not None and self._copied.query():
            self._copied = None
        return self._copied is None and (self._reader is None or self._reader() is None)

    def use(self, copied: Event, reader: object | None = None) -> None:
        """Not free before the event has passed, and before the reader, if there is one, is gone."""
        self._copied = copied
        self._reader = None if reader is None else weakref.ref(reader)


class PinnedMemory:
    """Hands buffers out. One thread's.

    There are as many as were ever in use at once, two or three for each step in flight; nobody waits for
    one.
    """

    def __init__(self, accelerator: Accelerator) -> None:
        self._accelerator = accelerator
        self._buffers: list[PinnedBuffer] = []

    def take(self, num_bytes: int) -> PinnedBuffer:
        """A free buffer of at least so many bytes, to be copied from or to and marked by `use`."""
        free = [buffer for buffer in self._buffers if buffer.is_free]
        fitting = [buffer for buffer in free if len(buffer.memory) >= num_bytes]
        if fitting:
            return min(fitting, key=lambda buffer: len(buffer.memory))
        if free:
            # What was too small once will be again.
            self._buffers.remove(free[0])
        size = max(_LEAST_BYTES, 1 << (num_bytes - 1).bit_length())
        buffer = PinnedBuffer(self._accelerator.pin(size))
        self._buffers.append(buffer)
        return buffer


log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class HostBuffers:
    """Memory to be pinned, uint8."""

    swap_space: torch.Tensor
    """[swap blocks, bytes of a block]."""

    slots: torch.Tensor
    """[slots, bytes], see `staged_kv`."""

    pinned: list[torch.Tensor] = field(default_factory=list)
    """Those of them that the device copies from and to by itself."""

    @classmethod
    def reserve(cls, layout: KvLayout, num_swap_blocks: int, kv_descriptor: int | None) -> Self:
        """The slots lie in the memory behind the descriptor; ConfigError when there is not so much."""
        num_bytes = num_swap_blocks * layout.num_bytes
        try:
            swap_space = torch.from_numpy(np.zeros(num_bytes, np.uint8))
        except (MemoryError, ValueError) as error:
            raise ConfigError(
                f"the swap space of {num_bytes / 2**30:g} GiB (--swap-space) cannot be reserved: {error}"
            ) from error
        slots = torch.from_numpy(map_slots(staging_area(layout), kv_descriptor))
        return cls(swap_space.view(num_swap_blocks, layout.num_bytes), slots)

    def pin(self, accelerator: Accelerator) -> None:
        """Have the device copy from and to it by itself.

        Where the system does not allow that, all copies go through memory of the driver's, and the host waits
        for them: slow, but right.
        """
        for memory in (self.slots, self.swap_space):
            try:
                if memory.nbytes:
                    accelerator.adopt(memory)
                    self.pinned.append(memory)
            except RuntimeError as error:
                log.warning("memory cannot be pinned", num_bytes=memory.nbytes, error=str(error))

    def unpin(self, accelerator: Accelerator) -> None:
        """Undo it."""
        while self.pinned:
            accelerator.abandon(self.pinned.pop())
