"""What must hold between the block tables of all requests."""

from __future__ import annotations

from collections.abc import Iterable

from pagemesh.scheduler.request import Request


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
