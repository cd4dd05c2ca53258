"""The publisher by itself: it never waits, and nothing piles up."""

from __future__ import annotations

import queue

from pagemesh.cache.block_hash import CacheDigest
from pagemesh.core.engine import StepOutput
from pagemesh.membership.cache_changes import CacheChanges
from pagemesh.membership.publisher import (
    MAX_BLOCKS_PER_EVENT,
    Publisher,
    change_requests,
    digest_requests,
)
from pagemesh.v1 import kvstore_pb2
from tests.fakes.engine import FakeEngine
from tests.unit.kvstore.builders import make_blocks, make_worker


def step(*stored: int) -> StepOutput:
    return StepOutput(stored_block_hashes=make_blocks(*stored), cache_digest=CacheDigest())


def test_too_many_unreported_changes_make_it_ask_for_one_snapshot() -> None:
    steps: queue.Queue[StepOutput] = queue.Queue()
    engine = FakeEngine(num_blocks=2)
    publisher = Publisher("127.0.0.1:1", make_worker(num_blocks=2), engine, links=tuple)
    publisher.on_step(StepOutput(cache_snapshot=[], cache_digest=CacheDigest()))
    engine.start(steps.put)
    try:
        publisher.on_step(step(1, 2, 3, 4))
        assert steps.empty()
        publisher.on_step(step(5))
        publisher.on_step(step(6, 7, 8, 9, 10))
        assert steps.get(timeout=10).cache_snapshot == ()
    finally:
        engine.stop()
    assert all(step.cache_snapshot is None for step in list(steps.queue))


def test_changes_become_events_in_the_order_that_never_holds_too_many_blocks() -> None:
    changes = CacheChanges(True, removed=make_blocks(1), stored=make_blocks(2, 3), digest=None)
    assert change_requests(changes) == [
        kvstore_pb2.PublishRequest(cleared=kvstore_pb2.BlocksCleared()),
        kvstore_pb2.PublishRequest(
            removed=kvstore_pb2.BlocksRemoved(block_hashes=make_blocks(1)[0])
        ),
        kvstore_pb2.PublishRequest(
            stored=kvstore_pb2.BlocksStored(block_hashes=b"".join(make_blocks(2, 3)))
        ),
    ]


def test_many_blocks_are_spread_over_events() -> None:
    blocks = make_blocks(*range(MAX_BLOCKS_PER_EVENT + 1))
    requests = change_requests(CacheChanges(False, removed=[], stored=blocks, digest=None))
    assert [len(r.stored.block_hashes) for r in requests] == [16 * MAX_BLOCKS_PER_EVENT, 16]


def test_no_changes_are_no_events() -> None:
    assert change_requests(CacheChanges(False, removed=[], stored=[], digest=None)) == []


def test_a_digest_is_sent_as_numbers_and_not_before_it_is_known() -> None:
    changes = CacheChanges(False, removed=[], stored=[], digest=CacheDigest(3, 0x102))
    digest = kvstore_pb2.CacheDigest(block_count=3, names_xor=bytes(14) + b"\x01\x02")
    assert digest_requests(changes) == [kvstore_pb2.PublishRequest(digest=digest)]
    assert digest_requests(changes._replace(digest=None)) == []
