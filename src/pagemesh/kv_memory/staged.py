"""`KvAccess` to KV that the host cannot map: blocks go through buffers of host memory, piece by piece.

What moves a piece between a buffer and the blocks is a `Stager`: the device's own, or one that asks the
engine's process. No torch: workers read and write KV this way as well.
"""

from __future__ import annotations

import mmap
import os
import queue
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Final, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from pagemesh.core.kv import KvLayout
from pagemesh.errors import ConfigError, UnavailableError
from pagemesh.kv_memory.memory import check_blocks, check_layers, check_payload

SLOT_BYTES: Final = 4 << 20
"""Of a buffer: several of the parts that KV travels in (about 1 MiB), for wide blocks a part of one."""

NUM_SLOTS: Final = 2
"""Buffers of a worker: as many as it has threads that copy blocks."""

SLOT_PATIENCE: Final = 120.0
"""Seconds to wait for a buffer. Whoever has one has it for as long as `Stager` may take."""


class StagingArea(NamedTuple):
    """The buffers, one behind the other in memory that is shared."""

    num_slots: int
    slot_bytes: int


def staging_area(layout: KvLayout) -> StagingArea:
    """Buffers that hold at least the keys of a block in one layer."""
    return StagingArea(NUM_SLOTS, max(SLOT_BYTES, layout.num_bytes_per_layer // 2))


def map_slots(area: StagingArea, descriptor: int | None = None) -> npt.NDArray[np.uint8]:
    """The buffers, [slots, bytes], in the memory behind a descriptor, or in memory of one's own.

    Everybody who gives the same descriptor sees the same bytes. ConfigError when there is not so much
    memory.
    """
    size = area.num_slots * area.slot_bytes
    try:
        if descriptor is not None:
            os.ftruncate(descriptor, size)
        mapping = mmap.mmap(-1 if descriptor is None else descriptor, size)
    except OSError as error:
        raise ConfigError(f"{size} bytes of buffers for KV cannot be reserved: {error}") from error
    return np.frombuffer(mapping, dtype=np.uint8).reshape(area.num_slots, area.slot_bytes)


class Piece(NamedTuple):
    """What fits into a buffer at once: some planes of some blocks.

    A plane is all keys or all values of a layer: those of layer i are planes 2 · i and 2 · i + 1.
    """

    block_ids: tuple[int, ...]
    first_plane: int
    num_planes: int

    @property
    def planes(self) -> range:
        """Their numbers."""
        return range(self.first_plane, self.first_plane + self.num_planes)


class Stager(Protocol):
    """Moves pieces; each slot is used by one thread at a time."""

    def stage_out(self, slot: int, piece: Piece) -> None:
        """Copy a piece from the blocks to the beginning of a slot, in C order [plane, block, bytes].

        Here and below: returns when it is done. Raises UnavailableError when it cannot be done any more,
        and then nothing touches the blocks later.
        """
        ...

    def stage_in(self, slot: int, piece: Piece) -> None:
        """The reverse."""
        ...

    def sum(self, slot: int, piece: Piece) -> int:
        """The checksum that `pagemesh.kernels.block_copy` gives of a piece, of any size. It stays there."""
        ...

    def copy(
        self, slot: int, peer: DeviceMemoryName, source_ids: Sequence[int], piece: Piece
    ) -> int:
        """Fill a piece of any size with the same planes of another engine's blocks; gives its checksum.

        It is that of what was copied, whatever becomes of the other blocks meanwhile. UnavailableError with
        KV_MEMORY_UNREACHABLE when the device does not reach them.
        """
        ...


class StagedKv:
    """Implements `KvAccess` over slots of host memory and a stager; any thread."""

    def __init__(
        self,
        layout: KvLayout,
        num_blocks: int,
        slots: npt.NDArray[np.uint8],
        stager: Stager,
        name: DeviceMemoryName | None = None,
    ) -> None:
        """`slots` is [slots, bytes]."""
        self.name = name
        """How other engines on this host find the blocks; None when they cannot."""
        self.layout = layout
        self.num_blocks = num_blocks
        self._block_bytes = layout.num_bytes_per_layer // 2
        self._slots = slots
        self.area = StagingArea(*slots.shape)
        """Of the slots, for other processes that map them."""
        self.stager = stager
        """For whoever has slots of its own over the same memory."""
        self._free: queue.SimpleQueue[int] = queue.SimpleQueue()
        for slot in range(len(slots)):
            self._free.put(slot)

    def read(
        self, block_ids: Sequence[int], first_layer: int, num_layers: int, target: memoryview
    ) -> None:
        """See `KvAccess.read`. UnavailableError when the engine is gone."""
        check_payload(self.layout, len(block_ids), num_layers, len(target))
        copy = np.frombuffer(target, np.uint8)
        begin = 0
        for piece in self._pieces(block_ids, first_layer, num_layers):
            end = begin + piece.num_planes * len(piece.block_ids) * self._block_bytes
            with self._slot() as slot:
                self.stager.stage_out(slot, piece)
                copy[begin:end] = self._slots[slot, : end - begin]
            begin = end

    def write(
        self,
        block_ids: Sequence[int],
        first_layer: int,
        num_layers: int,
        payload: bytes | memoryview,
    ) -> None:
        """See `KvAccess.write`. UnavailableError when the engine is gone."""
        check_payload(self.layout, len(block_ids), num_layers, len(payload))
        source = np.frombuffer(payload, np.uint8)
        begin = 0
        for piece in self._pieces(block_ids, first_layer, num_layers):
            end = begin + piece.num_planes * len(piece.block_ids) * self._block_bytes
            with self._slot() as slot:
                self._slots[slot, : end - begin] = source[begin:end]
                self.stager.stage_in(slot, piece)
            begin = end

    def checksum(self, block_ids: Sequence[int], first_layer: int, num_layers: int) -> int:
        """That of `pagemesh.kernels.block_copy`, of what `read` would give, which stays on the device.

        UnavailableError when the engine is gone.
        """
        piece = self._piece(block_ids, first_layer, num_layers)
        with self._slot() as slot:
            return self.stager.sum(slot, piece)

    def copy_from(
        self,
        peer: DeviceMemoryName,
        source_ids: Sequence[int],
        block_ids: Sequence[int],
        first_layer: int,
        num_layers: int,
    ) -> int:
        """Fill blocks with those of another engine of this layout, on its device or another of this host.

        Gives what `checksum` would then give of the copies, if nobody else wrote them: it tells whether
        they are right, whatever becomes of the other memory meanwhile. KvIntegrityError for blocks that
        either side lacks, UnavailableError when the other's memory is out of reach or the engine is gone.
        """
        check_blocks(peer.num_blocks, source_ids)
        piece = self._piece(block_ids, first_layer, num_layers)
        with self._slot() as slot:
            return self.stager.copy(slot, peer, source_ids, piece)

    def _piece(self, block_ids: Sequence[int], first_layer: int, num_layers: int) -> Piece:
        check_layers(self.layout, first_layer, num_layers)
        check_blocks(self.num_blocks, block_ids)
        return Piece(tuple(block_ids), 2 * first_layer, 2 * num_layers)

    def _pieces(
        self, block_ids: Sequence[int], first_layer: int, num_layers: int
    ) -> Iterator[Piece]:
        check_layers(self.layout, first_layer, num_layers)
        check_blocks(self.num_blocks, block_ids)
        room = self._slots.shape[1] // self._block_bytes
        return cut_into_pieces(tuple(block_ids), 2 * first_layer, 2 * num_layers, room)

    @contextmanager
    def _slot(self) -> Iterator[int]:
        """A slot of one's own meanwhile."""
        try:
            slot = self._free.get(timeout=SLOT_PATIENCE)
        except queue.Empty:
            raise UnavailableError(f"no buffer for KV became free in {SLOT_PATIENCE:g} s") from None
        try:
            yield slot
        finally:
            self._free.put(slot)


def cut_into_pieces(
    block_ids: tuple[int, ...], first_plane: int, num_planes: int, room: int
) -> Iterator[Piece]:
    """Cut [planes, blocks] into what `room` blocks of one plane hold, in the order of `KvAccess.read`.

    Whole planes where they fit, so that a piece is a run of the payload; else runs of one plane.
    """
    if not block_ids:
        return
    end_plane = first_plane + num_planes
    planes_each = max(1, room // len(block_ids))
    for plane in range(first_plane, end_plane, planes_each):
        for begin in range(0, len(block_ids), room):
            ids = block_ids[begin : begin + room]
            yield Piece(ids, plane, min(planes_each, end_plane - plane))


class DeviceMemoryName(NamedTuple):
    """Where a KV cache lies: [layer, 2 (keys, values), block, bytes of a block]."""

    process_id: int
    """Of the process that has it; when that ends, nobody may read it any more."""
    handle: bytes
    """Of the allocation, as the device's driver makes and opens it."""
    offset: int
    """Of the cache within the allocation, in bytes."""
    num_blocks: int
