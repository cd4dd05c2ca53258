"""Preemption by swap: KV that leaves the cache and comes back. All block ids are literal."""

import pytest

from pagemesh.cache.swap_space import SwapTotals
from pagemesh.core.request import FinishReason
from pagemesh.scheduler.batch import BlockMoves
from tests.fakes.engine import expected_tokens
from tests.unit.scheduler.builders import FixedWay, Stepper, make_info, make_request


def make_stepper(
    num_blocks: int = 5,
    num_swap_blocks: int = 4,
    *,
    caching: bool = False,
    max_num_batched_tokens: int = 64,
) -> Stepper:
    return Stepper(
        make_info(num_blocks),
        enable_prefix_caching=caching,
        num_swap_blocks=num_swap_blocks,
        preemption=FixedWay(True),
        max_num_batched_tokens=max_num_batched_tokens,
    )


def check_tokens(stepper: Stepper, **lengths: int) -> None:
    """Every request got its own tokens, `lengths` many."""
    for name, num_tokens in lengths.items():
        first = 100 + sum(name.encode()) % 400
        prompt = range(first, first + PROMPT_LENGTHS[name])
        assert tuple(stepper.tokens[name]) == expected_tokens(prompt, num_tokens), name
        assert stepper.reason(name) == "length"


PROMPT_LENGTHS = {"a": 7, "b": 11}


def preempt_b(stepper: Stepper) -> None:
    """Run "a" and "b" until "a" takes a block of the other, which then has KV of 12 tokens."""
    stepper.submit(make_request("a", 7, max_tokens=6), make_request("b", 11, max_tokens=3))
    stepper.step()
    stepper.step()
    assert stepper.step() == [("a", 8, 1)]


def test_a_swapped_request_continues_where_it_was() -> None:
    stepper = make_stepper()
    preempt_b(stepper)
    assert stepper.moves == BlockMoves(swap_outs=((2, 0), (3, 1), (4, 2)))
    load = stepper.scheduler.load()
    assert (load.num_waiting, load.num_swapped, load.num_pending_prefill_tokens) == (1, 1, 1)
    for _ in range(3):
        stepper.step()
    assert stepper.reason("a") == "length"
    assert stepper.step() == [("b", 12, 1)]
    assert stepper.moves.swap_ins == ((0, 1), (1, 2), (2, 3))
    assert stepper.scheduler.load().num_swapped == 0
    check_tokens(stepper, a=6, b=3)
    assert stepper.num_free_blocks == 5


def test_what_the_prefix_cache_still_has_is_not_swapped_in() -> None:
    stepper = make_stepper(caching=True)
    preempt_b(stepper)
    for _ in range(3):
        stepper.step()
    # The third of b's blocks was given to a; the others are still where they were.
    assert stepper.step() == [("b", 12, 1)]
    assert [swap_id for swap_id, _ in stepper.moves.swap_ins] == [2]
    check_tokens(stepper, a=6, b=3)
    # What came back is in the prefix cache again.
    history = [*make_request("b", 11).prompt_token_ids, *stepper.tokens["b"]]
    stepper.submit(make_request("next turn", history))
    assert stepper.step() == [("next turn", 12, 2)]


def test_without_room_in_the_swap_space_the_kv_is_computed_again() -> None:
    stepper = make_stepper(num_swap_blocks=2)
    preempt_b(stepper)
    assert not stepper.moves
    for _ in range(3):
        stepper.step()
    assert stepper.step() == [("b", 0, 13)]
    check_tokens(stepper, a=6, b=3)


def test_a_policy_may_want_it_computed_again() -> None:
    stepper = Stepper(
        make_info(5),
        enable_prefix_caching=False,
        num_swap_blocks=4,
        preemption=FixedWay(False),
    )
    preempt_b(stepper)
    assert not stepper.moves
    stepper.run()
    check_tokens(stepper, a=6, b=3)


@pytest.mark.parametrize("end", ["cancel", "finish all"])
def test_a_swapped_request_that_ends_gives_its_swap_blocks_back(end: str) -> None:
    stepper = make_stepper(num_swap_blocks=3)
    preempt_b(stepper)
    if end == "cancel":
        stepper.requests.cancel("b")
    else:
        for request in stepper.scheduler.requests.live():
            stepper.scheduler.requests.finish(request, FinishReason.CANCELLED)
    stepper.run()
    assert stepper.reason("b") == "cancelled"
    # All three are free: the next victim needs them.
    stepper.submit(make_request("c", 7, max_tokens=6), make_request("d", 11, max_tokens=3))
    stepper.step()
    stepper.step()
    assert stepper.step() == [("c", 8, 1)]
    assert [swap_id for _, swap_id in stepper.moves.swap_outs] == [0, 1, 2]
    stepper.run()


def test_a_prompt_that_was_computed_in_part_is_swapped_as_far_as_it_is() -> None:
    stepper = make_stepper(max_num_batched_tokens=8)
    stepper.submit(make_request("a", 7, max_tokens=6), make_request("b", 11, max_tokens=3))
    assert stepper.step() == [("a", 0, 7), ("b", 0, 1)]
    assert stepper.step() == [("a", 7, 1), ("b", 1, 7)]
    assert stepper.step() == [("a", 8, 1)]
    assert stepper.moves.swap_outs == ((2, 0), (3, 1))
    assert stepper.scheduler.load().num_pending_prefill_tokens == 3
    for _ in range(3):
        stepper.step()
    assert stepper.step() == [("b", 8, 3)]
    stepper.run()
    check_tokens(stepper, a=6, b=3)


def test_the_last_request_may_swap_itself_out_of_a_step_without_sequences() -> None:
    stepper = make_stepper(num_blocks=4)
    stepper.submit(make_request("export", 8, export=True))
    stepper.step()
    stepper.submit(make_request("a", 7, max_tokens=4))
    stepper.step()
    stepper.step()
    assert stepper.step() == []
    assert stepper.moves.swap_outs == ((2, 0), (3, 1))
    stepper.requests.release("export")
    assert stepper.step() == [("a", 8, 1)]
    stepper.run()
    check_tokens(stepper, a=4)


def test_a_fork_waits_for_its_swapped_leader_and_copies_what_came_back() -> None:
    stepper = make_stepper(num_blocks=5)
    preempt_b(stepper)
    fork = make_request("b", 11, max_tokens=3, seed=4)
    stepper.submit(make_request("fork", fork.prompt_token_ids, max_tokens=3, seed=4, fork_of="b"))
    for _ in range(3):
        assert [share[0] for share in stepper.step()] == ["a"]
    assert stepper.step() == [("b", 12, 1), ("fork", 10, 1)]
    (copied, _), *_ = stepper.moves.copies
    assert copied in [block_id for _, block_id in stepper.moves.swap_ins]
    stepper.run()
    assert tuple(stepper.tokens["fork"]) == expected_tokens(fork.prompt_token_ids, 3, 4)
    check_tokens(stepper, a=6, b=3)


@pytest.mark.parametrize(
    ("num_swap_blocks", "totals"),
    [(4, SwapTotals(4, 3, 1)), (2, SwapTotals(2, 0, 0))],
    ids=["swap", "recompute"],
)
def test_preemptions_are_counted_by_kind(num_swap_blocks: int, totals: SwapTotals) -> None:
    stepper = make_stepper(num_swap_blocks=num_swap_blocks)
    preempt_b(stepper)
    assert stepper.scheduler.load().num_preemptions == 1
    assert stepper.scheduler.load().swap == totals
    stepper.run()
    assert stepper.scheduler.load().swap == totals._replace(num_used_blocks=0)
