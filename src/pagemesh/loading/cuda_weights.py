"""Weights from files straight to a device: through two pinned buffers, whatever the model's size.

While the device copies from one buffer, the host copies the next piece of the memory-mapped file into the
other. So loading is as fast as the slowest of disk, one core's copying and PCIe; the host never holds more
of a model than the buffers and what the system keeps of its files. (What safetensors' own loading to a
device does from pageable memory, in one copy for each tensor.)
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Final

import torch

from pagemesh.engine.accelerator import Accelerator, Event
from pagemesh.models.architectures.architecture import Convert

BUFFER_BYTES: Final = 32 << 20
"""Large enough that a copy's start does not count, small enough that the buffers pass through caches."""

_PATIENCE: Final = 60.0


class DeviceWeightWriter:
    """Implements `WeightWriter`, for parameters that the accelerator's stream uses."""

    def __init__(self, accelerator: Accelerator, buffer_bytes: int = BUFFER_BYTES) -> None:
        self._accelerator = accelerator
        self._copies = accelerator.beside()
        self._buffers = [_Buffer(accelerator.pin(buffer_bytes)) for _ in range(2)]

    @property
    def device(self) -> torch.device:
        return self._accelerator.device

    def computing(self) -> AbstractContextManager[None]:
        return self._accelerator.computing()

    def write(self, place: torch.Tensor, tensor: torch.Tensor, convert: Convert | None) -> None:
        """See `WeightWriter`.

        Straight into the place if nothing has to be converted; else the tensor's copy on the device is all
        that is there beside the parameter.
        """
        if convert is None and place.dtype == tensor.dtype and place.is_contiguous():
            self._bring(tensor, place)
            return
        copy = torch.empty(tensor.shape, dtype=tensor.dtype, device=self.device)
        self._bring(tensor, copy)
        place.copy_(copy if convert is None else convert(copy))

    def is_finite(self, place: torch.Tensor) -> torch.Tensor:
        """See `WeightWriter`: a sum, which no tensor of the parameter's size is needed for."""
        return place.sum(dtype=torch.float32).isfinite()

    def _bring(self, source: torch.Tensor, target: torch.Tensor) -> None:
        """Have a tensor copied to one on the device, both contiguous; its memory may be reused at once."""
        source, target = _as_bytes(source), _as_bytes(target)
        allocated = self._accelerator.record()
        with self._copies.computing():
            # Where the target lies, work of the other stream may still be going on.
            self._copies.follow(allocated)
            size = len(self._buffers[0].memory)
            for begin in range(0, len(source), size):
                piece = source[begin : begin + size]
                buffer = self._buffers[0]
                self._buffers.reverse()
                if buffer.busy_until is not None:
                    self._copies.wait(buffer.busy_until, _PATIENCE)
                staged = buffer.memory[: len(piece)]
                staged.copy_(piece)
                self._copies.copy(target[begin : begin + len(piece)], staged)
                buffer.busy_until = self._copies.record()
            brought = self._copies.record()
        self._accelerator.follow(brought)


class _Buffer:
    def __init__(self, memory: torch.Tensor) -> None:
        self.memory = memory
        self.busy_until: Event | None = None


def _as_bytes(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.contiguous().view(-1).view(torch.uint8)
