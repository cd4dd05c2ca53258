"""Arrays to the device and tensors back, each way by one copy where that can be, and without waiting."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from pagemesh.engine.accelerator import Accelerator, Event
from pagemesh.engine.cuda.pinned import PinnedMemory

_ALIGNMENT: Final = 16
"""Bytes: what a thread of a kernel reads at once."""

Array = npt.NDArray[Any]


class Segment(NamedTuple):
    """Where an array lies in a buffer."""

    begin: int
    end: int
    dtype: torch.dtype
    shape: tuple[int, ...]

    def view(self, buffer: torch.Tensor) -> torch.Tensor:
        """The array in a buffer, uint8 [N]."""
        return buffer[self.begin : self.end].view(self.dtype).view(self.shape)


class Transfers:
    """Both directions; within `Accelerator.computing`."""

    def __init__(self, accelerator: Accelerator, timeout: float) -> None:
        """The device hangs when a step takes longer than `timeout` seconds."""
        self._accelerator = accelerator
        self._timeout = timeout
        self._memory = PinnedMemory(accelerator)

    def reserve(self, arrays: Sequence[Array]) -> tuple[torch.Tensor, list[torch.Tensor]]:
        """Memory for `upload` of arrays like these, and where each of them lies in it."""
        segments = _segments(arrays)
        memory = self._allocate(segments[-1].end if segments else 0)
        return memory, [segment.view(memory) for segment in segments]

    def upload(
        self, arrays: Sequence[Array], target: torch.Tensor | None = None
    ) -> list[torch.Tensor]:
        """The arrays on the device, as they are now, by one copy.

        They lie in `target`, which `reserve` gave, or in memory of their own.
        """
        segments = _segments(arrays)
        size = segments[-1].end if segments else 0
        if target is None:
            target = self._allocate(size)
        elif len(target) != size:
            raise ValueError(f"{size} bytes of arrays do not fit a buffer of {len(target)}")
        if size:
            buffer = self._memory.take(size)
            host = buffer.memory.numpy()
            for array, segment in zip(arrays, segments, strict=True):
                place = host[segment.begin : segment.end].view(array.dtype)
                place.reshape(array.shape)[...] = array
            self._accelerator.copy(target, buffer.memory[:size])
            buffer.use(self._accelerator.record())
        return [segment.view(target) for segment in segments]

    def download(self, tensors: Sequence[torch.Tensor]) -> Download:
        """Have tensors copied to the host, as they are when the device gets there."""
        sources = [tensor.contiguous() for tensor in tensors]
        segments = _segments(sources)
        buffer = self._memory.take(segments[-1].end if segments else 0)
        for source, segment in zip(sources, segments, strict=True):
            if segment.end > segment.begin:
                self._accelerator.copy(segment.view(buffer.memory), source)
        event = self._accelerator.record()
        download = Download(self._accelerator, buffer.memory, event, segments, self._timeout)
        buffer.use(event, reader=download)
        return download

    def _allocate(self, num_bytes: int) -> torch.Tensor:
        return torch.empty(num_bytes, dtype=torch.uint8, device=self._accelerator.device)


class Download:
    """Tensors on their way to the host; as long as it is there, so is the memory that they come to."""

    def __init__(
        self,
        accelerator: Accelerator,
        memory: torch.Tensor,
        copied: Event,
        segments: Sequence[Segment],
        timeout: float,
    ) -> None:
        self._accelerator = accelerator
        self._memory = memory
        self._copied = copied
        self._segments = segments
        self._timeout = timeout

    def read(self) -> list[torch.Tensor]:
        """Wait for the tensors; they are the caller's own."""
        self._accelerator.wait(self._copied, self._timeout)
        return [segment.view(self._memory).clone() for segment in self._segments]


def _segments(arrays: Sequence[Array | torch.Tensor]) -> list[Segment]:
    """One behind the other, each aligned."""
    segments = []
    begin = 0
    for array in arrays:
        dtype = array.dtype if isinstance(array, torch.Tensor) else _DTYPES[array.dtype.name]
        end = begin + array.nbytes
        segments.append(Segment(begin, end, dtype, tuple(array.shape)))
        begin = -(-end // _ALIGNMENT) * _ALIGNMENT
    return segments


_DTYPES: Final = {
    np.dtype(name).name: getattr(torch, name) for name in ("int32", "int64", "float32", "float64")
}
