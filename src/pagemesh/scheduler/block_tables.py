"""Gives requests their blocks: those that hold KV already, then fresh ones. Names what gets full."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from pagemesh.cache.block_hash import hash_blocks, root_hash
from pagemesh.cache.block_pool import BlockPool
from pagemesh.engine.interface import EngineInfo
from pagemesh.scheduler.move_plan import MovePlan
from pagemesh.scheduler.request import Request, RequestState


class _Held(NamedTuple):
    """Blocks with a request's KV that are there before it has any."""

    shared: list[int]
    """The first blocks, all of whose slots are filled."""

    copied: int | None
    """The block behind them, some of whose slots are filled; someone else's to write."""

    num_tokens: int
    """Leading tokens whose KV is in these."""


class BlockTables:
    """Block tables of all requests over one pool.

    A request writes only into blocks that it alone holds: shared are full blocks in front of the first
    token to compute, and a block is offered to the prefix cache after its last token was computed. The
    block that a fork shares with its leader and is to write into next is copied for it (copy-on-write,
    as in PagedAttention, Kwon et al. 2023).
    """

    def __init__(self, pool: BlockPool, info: EngineInfo, moves: MovePlan) -> None:
        self._pool = pool
        self._moves = moves
        self._info = info
        self._block_size = info.layout.block_size

    def reserve(self, request: Request) -> bool:
        """Take blocks for all known tokens and the next one, or, when the pool has too few, nothing.

        At least one token is left to compute, because the next is sampled from it; of an import, at
        least one token of the prompt is left to import.
        """
        held = self._held(request)
        num_shared = len(held.shared)
        # The last token of a request ends it: no KV is ever computed for it.
        num_tokens = min(request.num_tokens + 1, request.max_total_tokens - 1)
        num_fresh = self._num_blocks(num_tokens) - num_shared
        if not self._pool.can_allocate(num_fresh, keeping=held.shared):
            return False
        self._pool.acquire(held.shared)
        request.block_ids = [*held.shared, *self._pool.allocate(num_fresh)]
        request.num_computed_tokens = held.num_tokens
        request.num_stored_blocks = num_shared
        if held.copied is not None:
            self._moves.copy(held.copied, request.block_ids[num_shared])
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

    def check_integrity(self, requests: Iterable[Request]) -> None:
        """Assert that requests which hold the same block have the same tokens in it, and only read it."""
        holders: dict[int, tuple[int, Request]] = {}
        for request in requests:
            for index, block_id in enumerate(request.block_ids):
                first_index, first = holders.setdefault(block_id, (index, request))
                if first is request:
                    continue
                end = (index + 1) * self._block_size
                assert index == first_index, f"block {block_id}: at several places"
                assert request.token_ids[:end] == first.token_ids[:end], f"block {block_id}: mixed"
                for holder in (first, request):
                    assert holder.num_computed_tokens >= end, (
                        f"block {block_id}: shared and written"
                    )

    def _held(self, request: Request) -> _Held:
        """The prefix cache's blocks, or the leader's when that has more; nothing is changed."""
        self._extend_hashes(request)
        num_reusable = request.num_skippable_tokens
        if request.awaits_kv:
            num_reusable = min(num_reusable, request.num_prompt_tokens - 1)
        num_reusable_blocks = num_reusable // self._block_size
        hits = self._pool.longest_cached_prefix(request.block_hashes[:num_reusable_blocks])
        num_hit_tokens = len(hits) * self._block_size
        leader = request.leader
        if leader is None or leader.leased or leader.state is not RequestState.RUNNING:
            return _Held(hits, None, num_hit_tokens)
        num_tokens = request.num_leader_tokens
        if not num_hit_tokens < num_tokens <= leader.num_computed_tokens:
            return _Held(hits, None, num_hit_tokens)
        num_full, num_more = divmod(num_tokens, self._block_size)
        copied = leader.block_ids[num_full] if num_more else None
        return _Held(leader.block_ids[:num_full], copied, num_tokens)

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
