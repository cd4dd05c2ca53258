"""Where weights lie once they are packed: in huge pages of this process's memory, or in memory that processes share.

A step reads each weight once, front to back. What a processor fetches ahead by itself ends with a page.
"""

from __future__ import annotations

import mmap
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Final

import torch

Share = Callable[[memoryview], memoryview | None]
"""Gives the same bytes elsewhere, to be read only; None when they stay where they are."""

Make = Callable[[torch.Tensor], object]
"""Writes a whole weight into a tensor that is given."""


@contextmanager
def packing_into(share: Share) -> Iterator[None]:
    """Weights that are packed meanwhile, by whichever kernel, go where `share` says."""
    _shares.append(share)
    try:
        yield
    finally:
        _shares.pop()


def place_packed(weight: torch.Tensor) -> torch.Tensor:
    """The weight, which nothing writes to any more, densely where it stays; drop the original. On a GPU it is there
    already."""
    if weight.is_cuda or weight.nbytes == 0:
        return weight
    if _shares:
        # .data: a memoryview over the same memory.
        raw = weight.contiguous().view(-1).view(torch.uint8).numpy().data
        shared = _shares[-1](raw)
        if shared is not None:
            return _read_only(shared, weight.shape, weight.dtype)
    return _kept(weight.shape, weight.dtype, lambda place: place.copy_(weight))


def place_made(shape: Sequence[int], dtype: torch.dtype, make: Make) -> torch.Tensor:
    """The same for a weight that is made where it stays, which takes no memory besides, unless it is shared."""
    if not _shares and torch.Size(shape).numel():
        return _kept(shape, dtype, make)
    own = torch.empty(*shape, dtype=dtype)
    make(own)
    return place_packed(own)


def _kept(shape: Sequence[int], dtype: torch.dtype, make: Make) -> torch.Tensor:
    place = _huge_pages.take(torch.Size(shape).numel() * dtype.itemsize)
    make(torch.frombuffer(place, dtype=dtype).view(*shape))
    return _read_only(place.toreadonly(), shape, dtype)


def _read_only(place: memoryview, shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
    with warnings.catch_warnings():
        # torch knows no tensors that cannot be written to.
        warnings.filterwarnings("ignore", message="The given buffer is not writable")
        return torch.frombuffer(place, dtype=dtype).view(*shape)


class _HugePages:
    """Regions that the kernel is asked to map in huge pages; each lives as long as a weight in it.

    Where it has none to give they are memory like any other.
    """

    _PAGE_BYTES: Final = 2 << 20
    _REGION_BYTES: Final = 64 * _PAGE_BYTES
    """Of addresses, for more than one weight. Pages are taken as they are written, so that only the last one of a
    region, behind which no weight fits, is taken in vain."""

    def __init__(self) -> None:
        self._rest = memoryview(b"")

    def take(self, num_bytes: int) -> memoryview:
        """So many there, to be written once."""
        if num_bytes > len(self._rest):
            self._rest = self._region(max(num_bytes, self._REGION_BYTES))
        taken = -(-num_bytes // mmap.PAGESIZE) * mmap.PAGESIZE
        place, self._rest = self._rest[:num_bytes], self._rest[taken:]
        return place

    def _region(self, num_bytes: int) -> memoryview:
        pages = -(-num_bytes // self._PAGE_BYTES)
        # Older kernels begin it anywhere; a page more holds a whole number of them.
        region = mmap.mmap(-1, (pages + 1) * self._PAGE_BYTES, mmap.MAP_PRIVATE)
        if hasattr(mmap, "MADV_HUGEPAGE"):
            region.madvise(mmap.MADV_HUGEPAGE)
        begin = -torch.frombuffer(region, dtype=torch.uint8).data_ptr() % self._PAGE_BYTES
        return memoryview(region)[begin : begin + pages * self._PAGE_BYTES]


_huge_pages: Final = _HugePages()
_shares: Final[list[Share]] = []
