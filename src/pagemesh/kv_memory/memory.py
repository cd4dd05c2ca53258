"""The bytes of the paged KV cache, for those who move blocks. No torch: two processes share them.

Knows where a block lies; it does not know who owns it (`pagemesh.cache`).
"""

from __future__ import annotations

import fcntl
import mmap
import os
import secrets
import tempfile
import weakref
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt
import xxhash

from pagemesh.core.kv import KvLayout
from pagemesh.errors import ConfigError, KvIntegrityError

NONCE_BYTES: Final = 16

SHORT_RUN: Final = 4
"""Consecutive blocks, below which a plane is summed up as a whole: block by block, Python would take
longer than the sums."""


def open_memory() -> int:
    """A file descriptor of empty memory that other processes can map; whoever asked for it closes it."""
    if hasattr(os, "memfd_create"):
        return os.memfd_create("pagemesh-kv", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    with tempfile.TemporaryFile() as file:
        return os.dup(file.fileno())


class MemoryName(NamedTuple):
    """How another process on this host finds KV memory, and recognizes it."""

    process_id: int
    descriptor: int
    num_blocks: int
    nonce: bytes
    """Lies behind the KV."""


def memory_size(layout: KvLayout, num_blocks: int) -> int:
    """Bytes of memory with so many blocks and the nonce."""
    return num_blocks * layout.num_bytes + NONCE_BYTES


def as_blocks(mapping: mmap.mmap, layout: KvLayout, num_blocks: int) -> npt.NDArray[np.uint8]:
    """The KV in a mapping, [layer, 2 (keys, values), block, bytes]."""
    shape = (layout.num_layers, 2, num_blocks, layout.num_bytes_per_layer // 2)
    return np.frombuffer(mapping, np.uint8, num_blocks * layout.num_bytes).reshape(shape)


class KvMemory:
    """KV of all layers; implements `KvAccess`.

    Zero-filled memory that the system commits page by page as blocks are first written. Different
    threads and processes may read and write different blocks at the same time. With a descriptor from
    `open_memory`, everybody who gives the same one sees the same bytes. ConfigError when there is not
    so much memory.
    """

    def __init__(self, layout: KvLayout, num_blocks: int, descriptor: int | None = None) -> None:
        self.layout = layout
        self.num_blocks = num_blocks
        self._descriptor: int | None = None
        size = memory_size(layout, num_blocks)
        try:
            if descriptor is not None:
                os.ftruncate(descriptor, size)
                self._descriptor = os.dup(descriptor)
                weakref.finalize(self, os.close, self._descriptor)
            self._mapping = mmap.mmap(-1 if descriptor is None else descriptor, size)
        except (OSError, OverflowError) as error:
            raise ConfigError(
                f"the KV cache of {size / 2**30:g} GiB (--kv-cache-memory) cannot be reserved: {error}"
            ) from error
        self.bytes = as_blocks(self._mapping, layout, num_blocks)
        """[layer, 2 (keys, values), block, bytes]."""

    def share(self) -> MemoryName | None:
        """Let processes of the same user on this host find the memory; None where they cannot.

        From then on it keeps its size, so that nobody who maps it is hurt.
        """
        if self._descriptor is None or not hasattr(os, "memfd_create"):
            return None
        seals = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW
        fcntl.fcntl(self._descriptor, fcntl.F_ADD_SEALS, seals)
        nonce = secrets.token_bytes(NONCE_BYTES)
        self._mapping[-NONCE_BYTES:] = nonce
        return MemoryName(os.getpid(), self._descriptor, self.num_blocks, nonce)

    def clear(self) -> None:
        """Have nothing but zeros in all blocks, which take no memory then. Nobody may have anything in one."""
        try:
            self._mapping.madvise(mmap.MADV_REMOVE)
        except (AttributeError, OSError):
            # Not on Linux, or a file system that has no holes.
            self.bytes[:] = 0

    def read(
        self, block_ids: Sequence[int], first_layer: int, num_layers: int, target: memoryview
    ) -> None:
        check_blocks(self.num_blocks, block_ids)
        check_payload(self.layout, len(block_ids), num_layers, len(target))
        planes = self._planes(first_layer, num_layers)
        rows = np.frombuffer(target, np.uint8).reshape(
            len(planes), len(block_ids), planes.shape[-1]
        )
        # One call for all: between the calls of two threads they would wait for each other's GIL.
        np.take(planes, _indices(block_ids), axis=1, out=rows, mode="clip")

    def checksum(self, block_ids: Sequence[int], first_layer: int, num_layers: int) -> int:
        """XXH3-64 of what `read` would give."""
        check_blocks(self.num_blocks, block_ids)
        planes = self._planes(first_layer, num_layers)
        runs = list(joint_runs(block_ids, block_ids))
        checksum = xxhash.xxh3_64()
        if _is_scattered(runs, block_ids):
            # Together they are summed up at once, and a plane's blocks stay in the processor's cache.
            sources = _indices(block_ids)
            gathered = np.empty((len(sources), planes.shape[-1]), np.uint8)
            for plane in planes:
                np.take(plane, sources, axis=0, out=gathered, mode="clip")
                checksum.update(gathered.data)
            return checksum.intdigest()
        for plane in planes:
            for begin, _, count in runs:
                checksum.update(plane[begin : begin + count].data)
        return checksum.intdigest()

    def write(
        self,
        block_ids: Sequence[int],
        first_layer: int,
        num_layers: int,
        payload: bytes | memoryview,
    ) -> None:
        """See `KvAccess.write`; KvIntegrityError when the payload's size is not that of the blocks."""
        check_blocks(self.num_blocks, block_ids)
        check_payload(self.layout, len(block_ids), num_layers, len(payload))
        planes = self._planes(first_layer, num_layers)
        rows = np.frombuffer(payload, np.uint8).reshape(
            len(planes), len(block_ids), planes.shape[-1]
        )
        planes[:, _indices(block_ids)] = rows

    def copy_from(
        self,
        source: npt.NDArray[np.uint8],
        source_ids: Sequence[int],
        block_ids: Sequence[int],
        first_layer: int,
        num_layers: int,
    ) -> int:
        """Fill blocks with those of another memory of this layout, [layer, 2, block, bytes].

        Gives the XXH3-64 of what then is in the blocks, as `read` would give it: taken from the copies,
        so that it tells whether they are right, whatever becomes of the other memory meanwhile.
        KvIntegrityError for blocks that either memory lacks.
        """
        check_blocks(self.num_blocks, block_ids)
        check_blocks(source.shape[2], source_ids)
        runs = list(joint_runs(source_ids, block_ids))
        planes = self._planes(first_layer, num_layers)
        others = source[first_layer : first_layer + num_layers].reshape(-1, *source.shape[2:])
        checksum = xxhash.xxh3_64()
        if _is_scattered(runs, block_ids):
            targets, sources = _indices(block_ids), _indices(source_ids)
            gathered = np.empty((len(targets), planes.shape[-1]), np.uint8)
            for plane, other in zip(planes, others, strict=True):
                np.take(other, sources, axis=0, out=gathered, mode="clip")
                checksum.update(gathered.data)
                plane[targets] = gathered
            return checksum.intdigest()
        for plane, other in zip(planes, others, strict=True):
            for source_begin, begin, count in runs:
                copy = plane[begin : begin + count]
                copy[:] = other[source_begin : source_begin + count]
                checksum.update(copy.data)
        return checksum.intdigest()

    def _planes(self, first_layer: int, num_layers: int) -> npt.NDArray[np.uint8]:
        """Keys and values of some layers, [2 * layers, block, bytes]."""
        check_layers(self.layout, first_layer, num_layers)
        layers = self.bytes[first_layer : first_layer + num_layers]
        return layers.reshape(-1, *self.bytes.shape[2:])


def _indices(block_ids: Sequence[int]) -> npt.NDArray[np.intp]:
    return np.array(block_ids, np.intp)


def _is_scattered(runs: Sequence[tuple[int, int, int]], block_ids: Sequence[int]) -> bool:
    return len(runs) * SHORT_RUN > len(block_ids)


def joint_runs(ones: Sequence[int], others: Sequence[int]) -> Iterator[tuple[int, int, int]]:
    """Where ids that belong together are consecutive on both sides, as (one, other, count)."""
    begin = 0
    for end in range(1, len(ones) + 1):
        goes_on = (
            end < len(ones)
            and ones[end] == ones[end - 1] + 1
            and others[end] == others[end - 1] + 1
        )
        if not goes_on:
            yield ones[begin], others[begin], end - begin
            begin = end


def check_layers(layout: KvLayout, first_layer: int, num_layers: int) -> None:
    """Raise KvIntegrityError unless there are such layers."""
    if not 0 <= first_layer <= first_layer + num_layers <= layout.num_layers:
        raise KvIntegrityError(
            f"layers {first_layer} to {first_layer + num_layers - 1} were named, "
            f"but there are {layout.num_layers}"
        )


def check_blocks(num_blocks: int, block_ids: Sequence[int]) -> None:
    """Raise KvIntegrityError for an id that none of so many blocks has."""
    for block_id in block_ids:
        if not 0 <= block_id < num_blocks:
            raise KvIntegrityError(f"block {block_id} was named, but there are {num_blocks}")


def check_payload(layout: KvLayout, num_blocks: int, num_layers: int, num_bytes: int) -> None:
    """Raise KvIntegrityError unless a payload has the size of so many blocks in so many layers."""
    expected = layout.num_bytes_of(num_blocks, num_layers)
    if num_bytes != expected:
        raise KvIntegrityError(
            f"KV of {num_blocks} blocks in {num_layers} layers has {num_bytes} bytes, "
            f"but must have {expected}"
        )
