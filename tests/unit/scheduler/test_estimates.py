"""What the scheduler learns from its steps: what prompts cost, swap or recompute, and the fit behind both."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pagemesh.core.load import EngineLoad, PrefillRate
from pagemesh.sampling.params import SamplingParams
from pagemesh.scheduler.batch import Batch, BlockMoves, ScheduledSequence
from pagemesh.scheduler.estimates import NonNegativeLeastSquares, StepCosts, SwapOrRecompute


def make_batch(*shares: tuple[int, int]) -> Batch:
    """A batch of sequences, each with a number of tokens behind a number of others."""
    return Batch(
        tuple(
            ScheduledSequence(str(i), range(num_tokens), start, (), None)
            for i, (num_tokens, start) in enumerate(shares)
        )
    )


def seconds_of(*shares: tuple[int, int]) -> float:
    """A machine: 10 ms for each step, 1 ms for a token of a prompt, 2 ms for a decode, 1 us for a pair."""
    pairs = sum(n * start + n * (n + 1) // 2 for n, start in shares)
    tokens = sum(n if n > 1 else 2 for n, _ in shares)
    return 0.01 + 1e-3 * tokens + 1e-6 * pairs


def learn(costs: StepCosts, *batches: tuple[tuple[int, int], ...], times: int = 20) -> None:
    for _ in range(times):
        for shares in batches:
            costs.observe(make_batch(*shares), seconds_of(*shares))


PROMPTS = (((100, 0),), ((500, 0),), ((500, 3000),), ((20, 3000),))
DECODES = (((1, 100),), ((1, 900),) * 8, ((1, 2000),) * 3)


def test_nothing_is_known_before_the_first_prompt() -> None:
    costs = StepCosts(512)
    learn(costs, *DECODES)
    assert costs.rate() == PrefillRate()
    assert costs.rate().seconds(10, 0) is None
    assert costs.rate().queue_seconds(10) is None


def test_one_prompt_gives_seconds_per_token() -> None:
    costs = StepCosts(512)
    costs.observe(make_batch((100, 0)), 0.2)
    assert costs.rate().seconds(50, 0) == pytest.approx(0.1)
    assert costs.rate().seconds(1000, 0) == pytest.approx(2)


def test_prompts_are_taken_apart_into_tokens_pairs_and_steps() -> None:
    costs = StepCosts(512)
    learn(costs, *PROMPTS)
    rate = costs.rate()
    assert rate.seconds_per_token == pytest.approx(1e-3, rel=0.02)
    assert rate.seconds_per_pair == pytest.approx(1e-6, rel=0.02)
    assert rate.seconds_per_step == pytest.approx(0.01, rel=0.02)
    assert rate.num_tokens_per_step == 512


def test_what_decodes_in_the_same_batch_is_not_counted_for_the_prompt() -> None:
    alone, beside = StepCosts(512), StepCosts(512)
    learn(alone, *PROMPTS)
    learn(beside, *DECODES)
    learn(beside, *[(*prompt, *((1, 900),) * 8) for prompt in PROMPTS], *DECODES)
    for prompt in ((100, 0), (500, 3000), (2000, 0)):
        expected = alone.rate().seconds(*prompt)
        assert beside.rate().seconds(*prompt) == pytest.approx(expected, rel=0.05)


def test_decodes_that_run_now_make_each_step_of_a_prompt_longer() -> None:
    costs = StepCosts(512)
    learn(costs, *PROMPTS, *DECODES)
    learn(costs, ((1, 999),) * 8, times=16)
    alone, beside = costs.rate().seconds(100, 0), costs.rate(num_decodes=8).seconds(100, 0)
    assert alone is not None
    assert beside is not None
    assert beside - alone == pytest.approx(8 * (0.002 + 1e-6 * 1000), rel=0.05)
    assert costs.rate(num_decodes=8).num_tokens_per_step == 504


def test_a_step_that_took_less_than_its_decodes_alone_leaves_something_for_the_prompt() -> None:
    costs = StepCosts(512)
    learn(costs, *DECODES)
    # Eight decodes alone take 33 ms.
    costs.observe(make_batch((8, 0), *((1, 900),) * 8), 0.008)
    assert costs.rate().seconds(8, 0) == pytest.approx(0.002)


def test_where_only_mixed_steps_were_seen_a_decode_counts_as_a_token() -> None:
    costs = StepCosts(512)
    costs.observe(make_batch((90, 0), *((1, 0),) * 10), 0.1)
    assert costs.rate().seconds_per_token == pytest.approx(0.001)


def test_decodes_do_not_make_what_is_known_of_prompts_fade() -> None:
    costs = StepCosts(512)
    learn(costs, *PROMPTS)
    before = costs.rate()
    learn(costs, *DECODES, times=3000)
    assert costs.rate() == before


def test_an_empty_batch_and_one_that_took_no_time_say_nothing() -> None:
    costs = StepCosts(512)
    costs.observe(make_batch(), 1.0)
    costs.observe(make_batch((100, 0)), 0.0)
    assert not costs.rate().is_known


def test_seconds_count_pairs_and_whole_steps() -> None:
    rate = PrefillRate(1e-3, 1e-6, 0.01, 100, 50.0)
    # 250 tokens behind 1,000: 0.25 s, 281,375 pairs and three steps.
    assert rate.seconds(250, 1000) == pytest.approx(0.25 + 0.281375 + 0.03)
    assert rate.seconds(0, 1000) == 0
    # Of those that wait, each has 50 pairs.
    assert rate.queue_seconds(200) == pytest.approx(0.2 + 0.01 + 0.02)


def test_a_prompt_waits_for_all_that_are_pending() -> None:
    rate = PrefillRate(1e-3, 0.0, 0.0, 512, 0.0)
    load = EngineLoad(num_pending_prefill_tokens=2000, prefill_rate=rate)
    assert load.prefill_seconds(100, 64) == pytest.approx(2.1)
    assert EngineLoad(num_pending_prefill_tokens=2000).prefill_seconds(100, 64) is None


def test_a_rate_alone_is_no_news() -> None:
    rate = PrefillRate(1e-3, 0.0, 0.0, 512, 0.0)
    assert EngineLoad(3, prefill_rate=rate) == EngineLoad(3)
    assert EngineLoad(3, prefill_rate=rate) != EngineLoad(4, prefill_rate=rate)


BLOCK_BYTES = 1_000_000  # one millisecond, as long as no copy was measured


def make_prompts(*num_tokens: int, moves: int = 0) -> Batch:
    sequences = tuple(
        ScheduledSequence(str(i), range(n), 0, range(n), SamplingParams())
        for i, n in enumerate(num_tokens)
    )
    return Batch(sequences, BlockMoves(copies=tuple((i, i + moves) for i in range(moves))))


def make_policy() -> SwapOrRecompute:
    """A policy beside an engine whose tokens take 0.1 ms each."""
    costs = StepCosts(512)
    costs.observe(make_prompts(500), 0.05)
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
            policy.observe(make_prompts(500, moves=10), seconds)
    assert not slow.should_swap(num_tokens=1000, num_blocks=10)
    assert fast.should_swap(num_tokens=60, num_blocks=10)


def test_one_bad_measurement_does_not_stand_for_ever() -> None:
    policy = make_policy()
    policy.observe(make_prompts(500, moves=1), 1.0)
    answers = [policy.should_swap(num_tokens=400, num_blocks=10) for _ in range(200)]
    assert (answers[0], answers[-1]) == (False, True)


def make_fit(num_quantities: int = 3) -> NonNegativeLeastSquares:
    return NonNegativeLeastSquares(num_quantities, memory=0.98)


def test_nothing_is_expected_before_the_first_measurement() -> None:
    assert make_fit().predict((1, 2, 3)) == 0


def test_a_single_measurement_counts_for_the_first_quantity() -> None:
    fit = make_fit()
    fit.observe((100, 5050, 1), 0.2)
    assert fit.coefficients == pytest.approx([0.002, 0, 0])


def test_exact_measurements_give_the_exact_coefficients_but_for_the_prior() -> None:
    fit = make_fit()
    for tokens in (16, 64, 512, 128, 512):
        for held in (0, 512, 4096):
            pairs = tokens * held + tokens * tokens / 2
            fit.observe((tokens, pairs, 1), 2e-3 * tokens + 1e-6 * pairs + 0.03)
    assert fit.coefficients == pytest.approx([2e-3, 1e-6, 0.03], rel=0.02)


def test_a_quantity_that_would_count_less_than_nothing_counts_nothing() -> None:
    fit = make_fit(2)
    # Faster per token the longer it is, which no second coefficient above zero explains.
    for tokens, seconds in ((10, 0.02), (100, 0.1), (1000, 0.5)):
        fit.observe((tokens, tokens * tokens), seconds)
    assert fit.coefficients[1] == 0
    assert fit.coefficients[0] > 0


@pytest.mark.parametrize("noise", [0.05, 0.2])
def test_noise_hardly_moves_what_is_predicted(noise: float) -> None:
    fit, draw = make_fit(), random.Random(3)
    lengths = [16, 64, 256, 512]
    for _ in range(300):
        tokens = draw.choice(lengths)
        pairs = tokens * draw.choice([0, 512, 2048]) + tokens * tokens / 2
        seconds = 2e-3 * tokens + 1e-6 * pairs + 0.03
        fit.observe((tokens, pairs, 1), seconds * draw.lognormvariate(0, noise))
    for tokens in lengths:
        pairs = tokens * 2048 + tokens * tokens / 2
        expected = 2e-3 * tokens + 1e-6 * pairs + 0.03
        assert fit.predict((tokens, pairs, 1)) == pytest.approx(expected, rel=0.1)


def test_equal_measurements_with_noise_are_not_taken_apart() -> None:
    fit, draw = make_fit(), random.Random(5)
    for _ in range(200):
        tokens = draw.choice([510, 511, 512])
        fit.observe((tokens, tokens * tokens / 2, 1), 1.0 * draw.lognormvariate(0, 0.1))
    # Eight times the tokens: eight times the time, and not the square of it.
    assert fit.predict((4096, 4096 * 4096 / 2, 8)) == pytest.approx(8, rel=0.1)


def test_a_first_measurement_that_was_far_too_slow_is_outweighed_at_once() -> None:
    fit = make_fit()
    fit.observe((100, 5000, 1), 60.0)
    fit.observe((100, 5000, 1), 0.2)
    assert fit.predict((100, 5000, 1)) == pytest.approx(0.2, rel=0.01)


def test_a_process_that_was_stopped_for_an_hour_has_only_been_slow_once() -> None:
    fit = make_fit()
    for _ in range(100):
        fit.observe((100, 5000, 1), 0.2)
    fit.observe((100, 5000, 1), 3600.0)
    assert fit.predict((100, 5000, 1)) == pytest.approx(0.2, rel=0.05)


def test_what_is_slower_or_faster_from_now_on_is_believed() -> None:
    fit = make_fit()
    for seconds in (0.2, 1.0, 0.2):
        for _ in range(300):
            fit.observe((100, 5000, 1), seconds)
        assert fit.predict((100, 5000, 1)) == pytest.approx(seconds, rel=0.06)


def test_coefficients_are_computed_anew_only_now_and_then() -> None:
    fit = NonNegativeLeastSquares(1, memory=0.98, solve_every=4)
    seen = []
    for tokens in (1, 1, 1, 1, 2, 2, 2, 2):
        fit.observe((1,), 0.1 * tokens)
        seen.append(fit.coefficients[0])
    assert seen[3:7] == pytest.approx([0.1] * 4)
    assert seen[7] > 0.11


@settings(max_examples=60)
@given(
    st.lists(
        st.tuples(
            st.integers(1, 512),
            st.integers(0, 10**7),
            st.floats(1e-5, 1e3, allow_nan=False),
        ),
        min_size=1,
        max_size=40,
    )
)
def test_nothing_ever_costs_less_than_nothing_or_more_than_was_ever_seen(
    measured: list[tuple[int, int, float]],
) -> None:
    fit = make_fit()
    for tokens, pairs, seconds in measured:
        fit.observe((tokens, pairs, 1), seconds)
        assert all(c >= 0 for c in fit.coefficients)
        assert any(fit.coefficients)
        # Of one token at most what the slowest measurement took for all of its tokens.
        assert fit.predict((1, 0, 0)) <= max(s for _, _, s in measured) * 1.001
