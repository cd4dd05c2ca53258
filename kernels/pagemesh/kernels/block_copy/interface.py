"""What moving KV blocks takes and gives, whoever does it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch


class BlockCopier(Protocol):
    """Moves whole blocks between a pool and a buffer, or between pools, on one device.

    A pool is int64 [planes, blocks, words of a block]: keys and values of the layers by turns. Ids are int64
    tensors beside it; a block that there is not is read as zeros and never written. Everything is asked for
    on the current stream and not waited for. Raises ValueError for tensors that do not fit each other.
    """

    def gather(
        self, pool: torch.Tensor, block_ids: torch.Tensor, out: torch.Tensor
    ) -> torch.Tensor:
        """Copy the blocks [N] of all of `pool`'s planes into `out`, [planes, N, words], in their order.

        Gives the checksum of `out`, int64 [1], whose bits are those of `checksum_of`. For some layers
        alone, `pool` is a part of the planes.
        """
        ...

    def scatter(
        self, source: torch.Tensor, pool: torch.Tensor, block_ids: torch.Tensor
    ) -> torch.Tensor:
        """The reverse, with the checksum of `source`; no id may be there twice."""
        ...

    def copy(
        self,
        source: torch.Tensor,
        source_ids: torch.Tensor,
        target: torch.Tensor,
        target_ids: torch.Tensor,
    ) -> None:
        """Copy blocks from one pool to another or within one; see `check_pairs`.

        Planes and blocks of these pools may lie in any order, as long as a block's words lie densely.
        """
        ...

    def copy_and_sum(
        self,
        source: torch.Tensor,
        source_ids: torch.Tensor,
        target: torch.Tensor,
        target_ids: torch.Tensor,
    ) -> torch.Tensor:
        """`copy`, with the checksum of what was copied: that which `gather` gives of the sources.

        It is that of the words as they were read, once: also when somebody else writes them meanwhile, it
        is that of the words in the targets.
        """
        ...

    def sum(self, pool: torch.Tensor, block_ids: torch.Tensor) -> torch.Tensor:
        """The checksum that `gather` gives, of blocks that stay where they are."""
        ...


def check_pairs(
    pairs: Sequence[tuple[int, int]], num_sources: int, num_targets: int, same_pool: bool
) -> None:
    """Raise ValueError unless all blocks (source, target) exist and can be copied in any order.

    No target is there twice, and within one pool none is a source as well: then it is as if all were read
    before any is written.
    """
    targets = {target for _, target in pairs}
    for source, target in pairs:
        if not (0 <= source < num_sources and 0 <= target < num_targets):
            raise ValueError(
                f"block {source} cannot be copied to block {target}: there are {num_sources} and"
                f" {num_targets}"
            )
        if same_pool and source in targets:
            raise ValueError(f"block {source} is both source and target")
    if len(targets) < len(pairs):
        raise ValueError(f"{len(pairs)} copies have only {len(targets)} targets")


def check_move(pool: torch.Tensor, block_ids: torch.Tensor, buffer: torch.Tensor) -> None:
    """Raise ValueError unless the buffer is what the blocks of the pool fill."""
    size = (pool.shape[0], len(block_ids), *pool.shape[2:])
    for name, tensor in (("pool", pool), ("buffer", buffer)):
        if tensor.dtype != torch.int64 or tensor.ndim != 3 or not tensor.is_contiguous():
            raise ValueError(
                f"the {name} is {tensor.dtype} {list(tensor.shape)} with strides"
                f" {list(tensor.stride())}, but must be dense torch.int64 [planes, blocks, words]"
            )
    if block_ids.dtype != torch.int64 or block_ids.ndim != 1 or buffer.shape != size:
        raise ValueError(
            f"blocks {block_ids.dtype} {list(block_ids.shape)} of a pool {list(pool.shape)} do not"
            f" fit a buffer {list(buffer.shape)}"
        )
    is_reached = buffer.device == pool.device or buffer.is_pinned()
    if pool.device != block_ids.device or not is_reached:
        raise ValueError(
            f"a pool on {pool.device}, ids on {block_ids.device} and a buffer on {buffer.device}"
            " are not on one device"
        )


def check_copy(
    source: torch.Tensor, source_ids: torch.Tensor, target: torch.Tensor, target_ids: torch.Tensor
) -> None:
    """Raise ValueError unless blocks of both pools are of one size, and there are as many ids."""
    is_alike = source.shape[::2] == target.shape[::2]
    is_alike &= (source.dtype, source.stride(-1)) == (target.dtype, target.stride(-1))
    is_alike &= (source.dtype, source.stride(-1)) == (torch.int64, 1)
    if not is_alike or source_ids.shape != target_ids.shape:
        raise ValueError(
            f"{list(source_ids.shape)} blocks of {source.dtype} {list(source.shape)} cannot be copied"
            f" to {list(target_ids.shape)} of {target.dtype} {list(target.shape)}"
        )


def check_sum(pool: torch.Tensor, block_ids: torch.Tensor) -> None:
    """Raise ValueError unless blocks of the pool can be summed up."""
    if pool.dtype != torch.int64 or pool.ndim != 3 or pool.stride(-1) != 1:
        raise ValueError(
            f"the pool is {pool.dtype} {list(pool.shape)} with strides {list(pool.stride())},"
            " but must be torch.int64 [planes, blocks, dense words]"
        )
    if block_ids.dtype != torch.int64 or block_ids.ndim != 1:
        raise ValueError(f"the ids are {block_ids.dtype} {list(block_ids.shape)}, not int64 [N]")
