"""Finds what there is already of a request's KV."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from pagemesh.cache.block_hash import BlockHasher
from pagemesh.cache.block_pool import BlockPool
from pagemesh.scheduler.request import Request, RequestState


class Reservation(NamedTuple):
    """Blocks that a request could get, as long as nobody else gets any."""

    shared: list[int]
    """The first blocks: full ones with its KV that are cached or held by others."""

    copied: int | None = None
    """The block behind them, some of whose slots have its KV; cached, or someone else's to write."""

    swapped: Sequence[int] = ()
    """Swap blocks with its KV, those behind `shared`."""

    num_tokens: int = 0
    """Leading tokens whose KV is in all these."""

    num_fresh: int = 0
    """Blocks that are wanted besides the shared ones."""


class HeldKv:
    """Looks into the prefix cache, the request's part of the swap space and its leader's blocks."""

    def __init__(self, pool: BlockPool, hasher: BlockHasher, block_size: int) -> None:
        self._pool = pool
        self._hasher = hasher
        self._block_size = block_size

    def of(self, request: Request) -> Reservation:
        """Cached blocks, then its own swapped or its leader's; nothing is changed, and no fresh ones are wanted."""
        self._hasher.extend(request.block_hashes, request.token_ids, salt=request.spec.cache_salt)
        held = self._cached(request)
        if request.num_swapped_tokens > held.num_tokens:
            swapped = request.swap_ids[len(held.shared) :]
            return Reservation(held.shared, swapped=swapped, num_tokens=request.num_swapped_tokens)
        leader = request.leader
        if leader is None or leader.state is not RequestState.RUNNING:
            return held
        num_tokens = request.num_leader_tokens
        if not held.num_tokens < num_tokens <= leader.num_computed_tokens:
            return held
        num_full, num_more = divmod(num_tokens, self._block_size)
        copied = leader.block_ids[num_full] if num_more else None
        return Reservation(leader.block_ids[:num_full], copied, num_tokens=num_tokens)

    def _cached(self, request: Request) -> Reservation:
        num_full, num_more = divmod(request.num_skippable_tokens, self._block_size)
        # What an import lacks is granted, sent and counted in whole blocks.
        is_copied = num_more > 0 and not request.awaits_kv
        hits = self._pool.longest_cached_prefix(request.block_hashes[: num_full + is_copied])
        if len(hits) > num_full:
            *shared, copied = hits
            return Reservation(shared, copied, num_tokens=request.num_skippable_tokens)
        return Reservation(hits, num_tokens=len(hits) * self._block_size)
