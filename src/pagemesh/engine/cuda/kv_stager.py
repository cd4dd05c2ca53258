"""Moves KV between blocks on the device and elsewhere, beside the steps: a `Stager`.

Each slot has a stream of its own. Whoever asks has leased the blocks, which orders it with the steps:

* What is read was written by steps whose results the host has seen, or in front of an event that it has
  waited for (`LayerEvents`), for only then is it made known that blocks hold KV; or by moves, which no
  result is waited for: hence `KvPool.moved`.
* What is written belongs to nobody else until `finish_import`, which the importer sends after `stage_in`
  has returned, and that is when the device has done it. Steps that might still look at the blocks' former
  contents were over before the blocks were granted (see `pagemesh.scheduler.request_table`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
import torch

from pagemesh.engine.accelerator import Accelerator
from pagemesh.engine.cuda.kv_pool import KvPool
from pagemesh.engine.cuda.peer_pools import PeerPools
from pagemesh.engine.cuda.transfers import Transfers
from pagemesh.kv_memory.peer import unreachable
from pagemesh.kv_memory.staged import DeviceMemoryName, Piece

COPY_PATIENCE: Final = 30.0
"""Seconds for some MiB over PCIe, which takes milliseconds; a device that needs longer hangs."""


class KvStager:
    """Implements `Stager` for the process that has the device."""

    def __init__(
        self,
        pool: KvPool,
        accelerator: Accelerator,
        slots: torch.Tensor,
        peers: PeerPools | None = None,
    ) -> None:
        """`slots`, uint8 [slots, bytes], is host memory that the device copies from and to by itself.

        Without `peers` no other pool is within reach.
        """
        self._pool = pool
        self._peers = peers
        self._slots = [_Slot(pool, accelerator.beside(), memory) for memory in slots]

    def stage_out(self, slot: int, piece: Piece) -> None:
        """See `Stager`; DeviceLostError when the device hangs."""
        self._slots[slot].out(piece)

    def stage_in(self, slot: int, piece: Piece) -> None:
        """See `Stager`; DeviceLostError when the device hangs."""
        self._slots[slot].into(piece)

    def sum(self, slot: int, piece: Piece) -> int:
        """See `Stager`; DeviceLostError when the device hangs."""
        return self._slots[slot].sum(piece)

    def copy(
        self, slot: int, peer: DeviceMemoryName, source_ids: Sequence[int], piece: Piece
    ) -> int:
        """See `Stager`; DeviceLostError when the device hangs."""
        if self._peers is None:
            raise unreachable("this engine does not read others' devices")
        with self._peers.use(peer) as planes:
            return self._slots[slot].copy(planes, source_ids, piece)

    def dummy_run(self) -> None:
        """Do `sum` and `copy` once, with the first block, so that what they need is compiled."""
        keys = Piece((0,), first_plane=0, num_planes=1)
        self.sum(0, keys)
        self._slots[0].copy(self._pool.planes, (0,), keys)


class _Slot:
    """One buffer on the host, its counterpart on the device, and the stream between them."""

    def __init__(self, pool: KvPool, accelerator: Accelerator, memory: torch.Tensor) -> None:
        self._pool = pool
        self._accelerator = accelerator
        self._block_words = pool.planes.shape[2]
        num_words = len(memory) // pool.planes.itemsize
        self._host = memory[: num_words * pool.planes.itemsize].view(pool.planes.dtype)
        self._device = torch.empty_like(self._host, device=accelerator.device)
        self._transfers = Transfers(accelerator, COPY_PATIENCE)

    def out(self, piece: Piece) -> None:
        """From the blocks to the host."""
        host, device = self._views(piece)
        with self._accelerator.computing():
            if self._pool.moved is not None:
                self._accelerator.follow(self._pool.moved)
            self._pool.gather(self._ids(piece.block_ids), piece.first_plane, device)
            self._accelerator.copy(host, device)
            done = self._accelerator.record()
        self._accelerator.wait(done, COPY_PATIENCE)

    def into(self, piece: Piece) -> None:
        """From the host to the blocks."""
        host, device = self._views(piece)
        with self._accelerator.computing():
            if self._pool.moved is not None:
                # A block whose KV was just swapped out may be one that is written now.
                self._accelerator.follow(self._pool.moved)
            self._accelerator.copy(device, host)
            self._pool.scatter(self._ids(piece.block_ids), piece.first_plane, device)
            done = self._accelerator.record()
        self._accelerator.wait(done, COPY_PATIENCE)

    def sum(self, piece: Piece) -> int:
        """Of the blocks, where they are."""
        with self._accelerator.computing():
            if self._pool.moved is not None:
                self._accelerator.follow(self._pool.moved)
            checksum = self._pool.sum(self._ids(piece.block_ids), piece.planes)
            download = self._transfers.download([checksum])
        return _unsigned(*download.read())

    def copy(self, other: torch.Tensor, source_ids: Sequence[int], piece: Piece) -> int:
        """From another pool's planes into the blocks."""
        with self._accelerator.computing():
            if self._pool.moved is not None:
                self._accelerator.follow(self._pool.moved)
            sources, targets = self._ids(source_ids), self._ids(piece.block_ids)
            checksum = self._pool.copy_from(other, sources, targets, piece.planes)
            download = self._transfers.download([checksum])
        return _unsigned(*download.read())

    def _views(self, piece: Piece) -> tuple[torch.Tensor, torch.Tensor]:
        """Where the piece lies in both buffers, [planes, blocks, words]."""
        shape = (piece.num_planes, len(piece.block_ids), self._block_words)
        num_words = piece.num_planes * len(piece.block_ids) * self._block_words
        return self._host[:num_words].view(shape), self._device[:num_words].view(shape)

    def _ids(self, block_ids: Sequence[int]) -> torch.Tensor:
        (ids,) = self._transfers.upload([np.array(block_ids, np.int64)])
        return ids


def _unsigned(checksum: torch.Tensor) -> int:
    return int(checksum) % 2**64
