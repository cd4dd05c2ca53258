"""Pinned host memory for copies in flight: none is handed out again before its copy is done."""

from __future__ import annotations

from typing import Final

import torch

from pagemesh.engine.accelerator import Accelerator, Event

_LEAST_BYTES: Final = 1 << 16


class PinnedBuffer:
    """A piece of pinned memory, for one user at a time."""

    def __init__(self, memory: torch.Tensor) -> None:
        self.memory = memory
        """uint8 [N]."""
        self.busy_until: Event | None = None
        """Behind the last copy; None when none is in flight."""
        self.is_taken = False


class PinnedMemory:
    """Hands buffers out, and takes them back when the device is done with them. One thread's.

    There are as many as were ever in flight at once: two or three for each step. Nobody waits for one.
    """

    def __init__(self, accelerator: Accelerator) -> None:
        self._accelerator = accelerator
        self._buffers: list[PinnedBuffer] = []

    def take(self, num_bytes: int) -> PinnedBuffer:
        """A buffer of at least so many bytes, the caller's until `release`."""
        free = [buffer for buffer in self._buffers if self._is_free(buffer)]
        fitting = [buffer for buffer in free if len(buffer.memory) >= num_bytes]
        if fitting:
            buffer = min(fitting, key=lambda each: len(each.memory))
        else:
            if free:
                # What was too small once will be again.
                self._buffers.remove(free[0])
            size = max(_LEAST_BYTES, 1 << (num_bytes - 1).bit_length())
            buffer = PinnedBuffer(self._accelerator.pin(size))
            self._buffers.append(buffer)
        buffer.is_taken = True
        return buffer

    def release(self, buffer: PinnedBuffer, event: Event | None) -> None:
        """Give a buffer back; it is free when the event has passed."""
        buffer.is_taken = False
        buffer.busy_until = event

    @staticmethod
    def _is_free(buffer: PinnedBuffer) -> bool:
        if buffer.is_taken:
            return False
        if buffer.busy_until is not None and buffer.busy_until.query():
            buffer.busy_until = None
        return buffer.busy_until is None
