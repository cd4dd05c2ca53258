"""What prompts cost an engine, learnt from its steps."""

from __future__ import annotations

import pytest

from pagemesh.core.load import EngineLoad, PrefillRate
from pagemesh.scheduler.batch import Batch, ScheduledSequence
from pagemesh.scheduler.estimates import StepCosts


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
