"""Times are taken apart into what they are made of, from noisy measurements."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pagemesh.scheduler.estimates import NonNegativeLeastSquares


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
