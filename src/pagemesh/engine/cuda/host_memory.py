"""Pinned host memory for copies in flight: none is handed out again before its copy is done."""

from __future__ import annotations

import weakref
from typing import Final

import torch

from pagemesh.engine.accelerator import Accelerator, Event

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
