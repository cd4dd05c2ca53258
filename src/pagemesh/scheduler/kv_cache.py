"""Gives requests their blocks: those that hold KV already, then fresh ones. Hashes what gets full.

It finds what there is already of a request's KV, and can check what must hold between the block tables of all requests.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import NamedTuple

from pagemesh.cache.block_hash import Hasher
from pagemesh.cache.block_pool import BlockPool
from pagemesh.cache.swap_space import SwapSpace
from pagemesh.scheduler.batch import BlockMoves, MovePlan
from pagemesh.scheduler.request import Request, RequestState


class KvCacheManager:
    """Block tables of all requests over one pool and one swap space.

    A request writes only into blocks that it alone holds: shared are full blocks in front of the first
    token to compute, and a block is offered to the prefix cache after its last token was computed. The
    block that a fork shares with its leader and is to write into next is copied for it (copy-on-write,
    as in PagedAttention, Kwon et al. 2023), and so is the last cached one of a prompt that is cached whole:
    only its last token is computed then.
    """

    def __init__(self, pool: BlockPool, swap: SwapSpace, hasher: Hasher, block_size: int) -> None:
        self._pool = pool
        self._swap = swap
        self._moves = MovePlan()
        self._hasher = hasher
        self._block_size = block_size
        self._held = HeldKv(pool, hasher, block_size)
        self._copied: list[int] = []
        """Blocks that the next moves copy, held until then."""
        self.num_unused_slots = 0
        """Token slots of all tables that hold no KV."""

    def propose(self, request: Request) -> Reservation:
        """Blocks for all known tokens and the next one; nothing is changed.

        At least one token is left to compute, because the next is sampled from it, or to import.
        """
        held = self._held.of(request)
        # The last token of a request ends it: no KV is ever computed for it.
        num_tokens = min(request.num_tokens + 1, request.max_total_tokens - 1)
        held = held._replace(num_fresh=self._num_blocks(num_tokens) - len(held.shared))
        if held.copied is None or self.can_take(held):
            return held
        # A pool that just holds the request has no room for a copy beside its source.
        return held._replace(copied=None, num_tokens=len(held.shared) * self._block_size)

    def can_take(self, reservation: Reservation, num_spare: int = 0) -> bool:
        """Whether the pool has these blocks and `num_spare` more."""
        shared, copied, *_ = reservation
        return self._pool.can_allocate(
            reservation.num_fresh + num_spare,
            keeping=shared if copied is None else [*shared, copied],
        )

    def take(self, request: Request, reservation: Reservation) -> None:
        """Give the request the blocks that were just proposed; ask `can_take` first."""
        shared, copied, swapped, num_tokens, num_fresh = reservation
        self._pool.acquire(shared)
        if copied is not None:
            self._pool.acquire([copied])
            self._copied.append(copied)
        fresh = self._pool.allocate(num_fresh)
        if copied is not None:
            self._moves.copy(copied, fresh[0])
        if swapped:
            self._moves.swap_in(swapped, fresh[: len(swapped)])
        self._free_swapped(request)
        request.block_ids = [*shared, *fresh]
        request.num_computed_tokens = request.num_launched_tokens = num_tokens
        request.num_stored_blocks = len(shared)
        self.num_unused_slots += len(request.block_ids) * self._block_size - num_tokens
        if request.num_cached_tokens is None:
            request.num_cached_tokens = num_tokens

    def take_moves(self) -> BlockMoves:
        """What the tables rely on that were taken or swapped out since the last call."""
        self._pool.free(self._copied)
        self._copied.clear()
        return self._moves.take()

    def grow(self, request: Request, num_tokens: int = 1) -> bool:
        """Make room for the KV of so many tokens more; False when the pool has too few blocks."""
        num_slots = len(request.block_ids) * self._block_size
        num_lacking = request.num_launched_tokens + num_tokens - num_slots
        if num_lacking <= 0:
            return True
        num_missing = self._num_blocks(num_lacking)
        if not self._pool.can_allocate(num_missing):
            return False
        request.block_ids += self._pool.allocate(num_missing)
        self.num_unused_slots += num_missing * self._block_size
        return True

    def mark_computed(self, request: Request, num_computed_tokens: int) -> None:
        """Note that the KV of the first tokens is in the blocks; full blocks enter the prefix cache."""
        self.num_unused_slots -= num_computed_tokens - request.num_computed_tokens
        request.num_computed_tokens = num_computed_tokens
        if request.num_launched_tokens < num_computed_tokens:
            # It came from outside.
            request.num_launched_tokens = num_computed_tokens
        num_full_blocks = num_computed_tokens // self._block_size
        if num_full_blocks == request.num_stored_blocks:
            return
        self._hasher.extend(request.block_hashes, request.token_ids, salt=request.spec.cache_salt)
        for index in range(request.num_stored_blocks, num_full_blocks):
            self._pool.store(request.block_ids[index], request.block_hashes[index])
        request.num_stored_blocks = num_full_blocks

    def can_swap_out(self, request: Request) -> bool:
        """Whether the swap space has room for the request's KV, if it has any."""
        num_blocks = self._num_blocks(request.num_computed_tokens)
        return num_blocks > 0 and self._swap.can_allocate(num_blocks)

    def swap_out(self, request: Request) -> None:
        """Keep the request's KV in the swap space and give its blocks back; ask `can_swap_out` first.

        All of it: blocks that are cached, or shared with others, may be gone when it comes back.
        """
        num_tokens = request.num_computed_tokens
        num_blocks = self._num_blocks(num_tokens)
        request.swap_ids = self._swap.allocate(num_blocks)
        request.num_swapped_tokens = num_tokens
        self._moves.swap_out(request.block_ids[:num_blocks], request.swap_ids)
        self._free_blocks(request)

    def free(self, request: Request) -> None:
        """Give all blocks back, those of the swap space as well."""
        self._free_blocks(request)
        self._free_swapped(request)

    def given_blocks(self, request: Request) -> tuple[tuple[int, ...], tuple[bytes, ...]]:
        """Block table of the tokens that the request came with, and the hashes of those that they fill."""
        block_ids = request.block_ids[: self._num_blocks(request.num_given_tokens)]
        block_hashes = request.block_hashes[: request.num_given_tokens // self._block_size]
        return tuple(block_ids), tuple(block_hashes)

    def check_integrity(self, requests: Collection[Request]) -> None:
        """Assert that the tables agree with each other, with the swap space and with the count."""
        check_shared_blocks(requests, self._block_size)
        self._swap.check_integrity([request.swap_ids for request in requests])
        counted = num_unused_slots(requests, self._block_size)
        assert counted == self.num_unused_slots, "unused slots were miscounted"

    def _free_blocks(self, request: Request) -> None:
        self._pool.free(request.block_ids)
        self.num_unused_slots -= len(request.block_ids) * self._block_size
        self.num_unused_slots += request.num_computed_tokens
        request.block_ids = []
        request.num_computed_tokens = request.num_launched_tokens = 0

    def _free_swapped(self, request: Request) -> None:
        self._swap.free(request.swap_ids)
        request.swap_ids = []
        request.num_swapped_tokens = 0

    def _num_blocks(self, num_tokens: int) -> int:
        return -(-num_tokens // self._block_size)


def check_shared_blocks(requests: Iterable[Request], block_size: int) -> None:
    """Assert that requests which hold the same block have the same tokens in it, and only read it."""
    holders: dict[int, tuple[int, Request]] = {}
    for request in requests:
        for index, block_id in enumerate(request.block_ids):
            first_index, first = holders.setdefault(block_id, (index, request))
            if first is request:
                continue
            end = (index + 1) * block_size
            assert index == first_index, f"block {block_id}: at several places"
            assert request.token_ids[:end] == first.token_ids[:end], f"block {block_id}: mixed"
            for holder in (first, request):
                assert holder.num_computed_tokens >= end, f"block {block_id}: shared and written"


def num_unused_slots(requests: Iterable[Request], block_size: int) -> int:
    """Token slots of all tables that hold no KV."""
    return sum(len(r.block_ids) * block_size - r.num_computed_tokens for r in requests)


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

    def __init__(self, pool: BlockPool, hasher: Hasher, block_size: int) -> None:
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
