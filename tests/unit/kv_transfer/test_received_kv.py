"""How much of what was received no sender had to compute for it."""

from __future__ import annotations

import pytest

from pagemesh.core.kv import KvGrant, KvLayout
from pagemesh.kv_transfer.receiver import BlockRun, ReceivedKv

LAYOUT = KvLayout.uniform(block_size=4, num_layers=3, num_kv_heads=1, head_dim=2, dtype="float32")
NUM_TOKENS = 18


def make_received() -> ReceivedKv:
    """Of a prompt of four blocks and two tokens, of which one block is held."""
    received = ReceivedKv(KvGrant("r", 4, (1, 8, 3, 6, 5), ()), LAYOUT, NUM_TOKENS)
    assert received.begin_stream() == 1
    return received


def add(received: ReceivedKv, first_block: int, end_block: int, reused_end: int) -> None:
    received.add(BlockRun(first_block, end_block, 0, 3), reused_end)


def test_reused_is_what_came_and_was_not_computed_for_the_stream() -> None:
    received = make_received()
    assert received.num_reused_tokens == 0
    # The first block is held: nobody sent it.
    add(received, 1, 2, reused_end=12)
    assert received.num_reused_tokens == 4
    # Behind a gap, it does not count yet.
    add(received, 3, 5, reused_end=12)
    assert received.num_reused_tokens == 4
    assert received.num_reused_with(12) == 8
    add(received, 2, 3, reused_end=12)
    assert received.is_complete
    assert received.num_reused_tokens == 8


def test_a_block_counts_when_all_its_layers_are_there() -> None:
    received = make_received()
    received.add(BlockRun(1, 3, 0, 2), 18)
    assert received.num_reused_tokens == 0
    received.add(BlockRun(1, 2, 2, 3), 18)
    assert received.num_reused_tokens == 4


def test_a_sender_that_had_less_than_was_held_had_nothing_of_use() -> None:
    received = make_received()
    add(received, 1, 5, reused_end=3)
    assert received.num_reused_tokens == 0


def test_what_a_sender_found_later_counts() -> None:
    received = make_received()
    add(received, 1, 2, reused_end=8)
    add(received, 2, 5, reused_end=16)
    assert received.num_reused_tokens == 12


@pytest.mark.parametrize(
    ("second", "num_reused"),
    [(0, 4), (12, 4), (16, 8), (18, 10), (99, 10)],
)
def test_each_of_several_senders_counts_for_what_it_brought(second: int, num_reused: int) -> None:
    received = make_received()
    # Two blocks, of which the first sender computed one.
    add(received, 1, 3, reused_end=8)
    assert received.begin_stream() == 3
    assert received.num_reused_tokens == 4
    assert received.num_reused_with(second) == num_reused
    add(received, 3, 5, reused_end=second)
    assert received.is_complete
    assert received.num_reused_tokens == num_reused
