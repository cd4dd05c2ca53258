"""Swap or recompute, by what steps took."""

from pagemesh.sampling.params import SamplingParams
from pagemesh.scheduler.batch import Batch, BlockMoves, ScheduledSequence
from pagemesh.scheduler.estimates import StepCosts, SwapOrRecompute

BLOCK_BYTES = 1_000_000  # one millisecond, as long as no copy was measured


def make_batch(*num_tokens: int, moves: int = 0) -> Batch:
    sequences = tuple(
        ScheduledSequence(str(i), range(n), 0, range(n), SamplingParams())
        for i, n in enumerate(num_tokens)
    )
    return Batch(sequences, BlockMoves(copies=tuple((i, i + moves) for i in range(moves))))


def make_policy() -> SwapOrRecompute:
    """A policy beside an engine whose tokens take 0.1 ms each."""
    costs = StepCosts(512)
    costs.observe(make_batch(500), 0.05)
    return SwapOrRecompute(BLOCK_BYTES, costs)


def test_before_any_prefill_was_measured_requests_are_swapped() -> None:
    policy = SwapOrRecompute(BLOCK_BYTES, StepCosts(512))
    assert policy.should_swap(num_tokens=1, num_blocks=1000)


def test_the_way_that_is_predicted_to_take_less_time_is_taken() -> None:
    policy = make_policy()
    # 10 blocks out and in: 20 ms.
    assert policy.should_swap(num_tokens=210, num_blocks=10)
    assert not policy.should_swap(num_tokens=190, num_blocks=10)


def test_measured_copies_replace_the_assumption() -> None:
    slow, fast = make_policy(), make_policy()
    for policy, seconds in ((slow, 1.0), (fast, 0.001)):
        for _ in range(20):
            policy.observe(make_batch(500, moves=10), seconds)
    assert not slow.should_swap(num_tokens=1000, num_blocks=10)
    assert fast.should_swap(num_tokens=60, num_blocks=10)


def test_one_bad_measurement_does_not_stand_for_ever() -> None:
    policy = make_policy()
    policy.observe(make_batch(500, moves=1), 1.0)
    answers = [policy.should_swap(num_tokens=400, num_blocks=10) for _ in range(200)]
    assert (answers[0], answers[-1]) == (False, True)
