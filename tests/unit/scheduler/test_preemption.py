"""Swap or recompute, by what steps took."""

from pagemesh.sampling.params import SamplingParams
from pagemesh.scheduler.batch import Batch, BlockMoves, ScheduledSequence
from pagemesh.scheduler.preemption import CheaperWay

BLOCK_BYTES = 1_000_000  # one millisecond, as long as no copy was measured


def make_batch(*num_tokens: int, moves: int = 0) -> Batch:
    sequences = tuple(
        ScheduledSequence(str(i), range(n), 0, range(n), SamplingParams())
        for i, n in enumerate(num_tokens)
    )
    return Batch(sequences, BlockMoves(copies=tuple((i, i + moves) for i in range(moves))))


def test_before_any_prefill_was_measured_requests_are_swapped() -> None:
    assert CheaperWay(BLOCK_BYTES).should_swap(num_tokens=1, num_blocks=1000)


def test_the_way_that_is_predicted_to_take_less_time_is_taken() -> None:
    policy = CheaperWay(BLOCK_BYTES)
    policy.observe(make_batch(500), 0.0, 0.05)  # 0.1 ms for a token
    # 10 blocks out and in: 20 ms.
    assert policy.should_swap(num_tokens=210, num_blocks=10)
    assert not policy.should_swap(num_tokens=190, num_blocks=10)


def test_measured_copies_replace_the_assumption() -> None:
    slow, fast = CheaperWay(BLOCK_BYTES), CheaperWay(BLOCK_BYTES)
    for policy, seconds in ((slow, 1.0), (fast, 0.001)):
        for _ in range(20):
            policy.observe(make_batch(500, moves=10), seconds, 0.05)
    assert not slow.should_swap(num_tokens=1000, num_blocks=10)
    assert fast.should_swap(num_tokens=60, num_blocks=10)


def test_steps_of_decodes_say_nothing_about_prefills() -> None:
    policy = CheaperWay(BLOCK_BYTES)
    policy.observe(make_batch(500), 0.0, 0.05)
    for _ in range(50):
        policy.observe(make_batch(1, 1, 1), 0.0, 0.03)
    assert not policy.should_swap(num_tokens=190, num_blocks=10)


def test_one_bad_measurement_does_not_stand_for_ever() -> None:
    policy = CheaperWay(BLOCK_BYTES)
    policy.observe(make_batch(500, moves=1), 1.0, 0.05)
    answers = [policy.should_swap(num_tokens=400, num_blocks=10) for _ in range(200)]
    assert (answers[0], answers[-1]) == (False, True)
