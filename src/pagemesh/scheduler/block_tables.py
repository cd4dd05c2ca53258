"""Gives requests their blocks: prefix hits first, then fresh ones. Hashes and stores what gets full."""

from __future__ import annotations

from pagemesh.cache.block_hash import hash_blocks, root_hash
from pagemesh.cache.block_pool import BlockPool
from pagemesh.engine.interface import EngineInfo
from pagemesh.scheduler.request import Request


class BlockTables:
    """Block tables of all requests over one pool.

    A request writes only into blocks that it alone holds: hits are full blocks in front of the first
    token to compute, and a block is offered to the prefix cache after its last token was computed.
    """

    def __init__(self, pool: BlockPool, info: EngineInfo) -> None:
        self._pool = pool
        self._info = info
        self._block_size = info.layout.block_size

    def reserve(self, request: Request) -> bool:
        """Take blocks for all known tokens and the next one, or, when the pool has too few, nothing.

        At least one token is left to compute, because the next is sampled from it; of an import, at
        least one token of the prompt is left to import.
        """
        self._extend_hashes(request)
        reusable = request.num_prompt_tokens if request.awaits_kv else request.num_tokens
        num_reusable_blocks = (reusable - 1) // self._block_size
        hits = self._pool.longest_cached_prefix(request.block_hashes[:num_reusable_blocks])
        # The last token of a request ends it: no KV is ever computed for it.
        num_tokens = min(request.num_tokens + 1, request.max_total_tokens - 1)
        num_fresh = self._num_blocks(num_tokens) - len(hits)
        if not self._pool.can_allocate(num_fresh, keeping=hits):
            return False
        self._pool.acquire(hits)
        request.block_ids = [*hits, *self._pool.allocate(num_fresh)]
        request.num_computed_tokens = len(hits) * self._block_size
        request.num_stored_blocks = len(hits)
        if request.num_cached_tokens is None:
            request.num_cached_tokens = request.num_computed_tokens
        return True

    def grow(self, request: Request) -> bool:
        """Make room for the KV of all known tokens; False when the pool has too few blocks."""
        num_missing = self._num_blocks(request.num_tokens) - len(request.block_ids)
        if num_missing <= 0:
            return True
        if not self._pool.can_allocate(num_missing):
            return False
        request.block_ids += self._pool.allocate(num_missing)
        return True

    def mark_computed(self, request: Request, num_computed_tokens: int) -> None:
        """Note that the KV of the first tokens is in the blocks; full blocks enter the prefix cache."""
        self._extend_hashes(request)
        request.num_computed_tokens = num_computed_tokens
        num_full_blocks = num_computed_tokens // self._block_size
        for index in range(request.num_stored_blocks, num_full_blocks):
            self._pool.store(request.block_ids[index], request.block_hashes[index])
        request.num_stored_blocks = num_full_blocks

    def free(self, request: Request) -> None:
        """Give all blocks back."""
        self._pool.free(request.block_ids)
        request.block_ids = []
        request.num_computed_tokens = 0

    def prompt_blocks(self, request: Request) -> tuple[tuple[int, ...], tuple[bytes, ...]]:
        """Block table of the whole prompt, and the names of its full blocks."""
        block_ids = request.block_ids[: self._num_blocks(request.num_prompt_tokens)]
        block_hashes = request.block_hashes[: request.num_prompt_tokens // self._block_size]
        return tuple(block_ids), tuple(block_hashes)

    def _num_blocks(self, num_tokens: int) -> int:
        return -(-num_tokens // self._block_size)

    def _extend_hashes(self, request: Request) -> None:
        hashes = request.block_hashes
        num_hashed_tokens = len(hashes) * self._block_size
        if request.num_tokens - num_hashed_tokens >= self._block_size:
            parent = hashes[-1] if hashes else self._root(request.spec.cache_salt)
            hashes += hash_blocks(parent, request.token_ids[num_hashed_tokens:], self._block_size)

    def _root(self, cache_salt: bytes) -> bytes:
        layout = self._info.layout
        return root_hash(self._info.model_fingerprint, layout.block_size, layout.dtype, cache_salt)
