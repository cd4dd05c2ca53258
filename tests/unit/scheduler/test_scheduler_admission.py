"""Who is admitted: room for what a request needs now, and for what all are expected to grow."""

import pytest

from pagemesh.scheduler.estimates import MeanLength
from pagemesh.scheduler.request import Lease, Request
from tests.fakes.engine import expected_tokens
from tests.unit.scheduler.builders import FixedGrowth, FixedWay, Stepper, make_info, make_request


def make_stepper(num_blocks: int, num_growth_tokens: int) -> Stepper:
    forecast = FixedGrowth(num_growth_tokens)
    return Stepper(make_info(num_blocks), forecast=forecast, enable_prefix_caching=False)


def test_a_request_waits_until_all_have_room_to_grow() -> None:
    stepper = make_stepper(num_blocks=6, num_growth_tokens=8)
    # Each takes two blocks now and is expected to take two more.
    stepper.submit(make_request("a", 7, max_tokens=16), make_request("b", 7, max_tokens=16))
    assert stepper.step() == [("a", 0, 7)]
    assert stepper.step() == [("a", 7, 1)]
    stepper.run()
    for name in "ab":
        prompt = make_request(name, 7).prompt_token_ids
        assert tuple(stepper.tokens[name]) == expected_tokens(prompt, 16)
    assert stepper.scheduler.load().num_preemptions == 0


def test_with_exactly_as_much_room_both_run() -> None:
    stepper = make_stepper(num_blocks=8, num_growth_tokens=8)
    stepper.submit(make_request("a", 7, max_tokens=16), make_request("b", 7, max_tokens=16))
    assert stepper.step() == [("a", 0, 7), ("b", 0, 7)]


def test_nobody_is_expected_to_grow_beyond_max_tokens() -> None:
    stepper = make_stepper(num_blocks=4, num_growth_tokens=1000)
    stepper.submit(make_request("a", 7, max_tokens=1), make_request("b", 7, max_tokens=2))
    assert stepper.step() == [("a", 0, 7), ("b", 0, 7)]


def test_a_request_alone_is_admitted_whatever_is_expected_of_it() -> None:
    stepper = make_stepper(num_blocks=6, num_growth_tokens=1000)
    stepper.submit(make_request("a", 7, max_tokens=12))
    assert stepper.step() == [("a", 0, 7)]


def test_a_preempted_request_comes_back_when_there_is_room_to_grow() -> None:
    stepper = Stepper(make_info(5), enable_prefix_caching=False, forecast=FixedGrowth(0))
    stepper.submit(make_request("a", 7, max_tokens=8), make_request("b", 7, max_tokens=8))
    while not stepper.scheduler.load().num_preemptions:
        stepper.step()
    stepper.scheduler._forecast = FixedGrowth(4)
    while "a" not in stepper.ends:
        assert [share[0] for share in stepper.step()] == ["a"]
    assert stepper.step()[0][0] == "b"
    stepper.run()
    assert stepper.scheduler.load().num_preemptions == 1


@pytest.mark.parametrize("swap", [True, False])
def test_who_was_preempted_is_still_ahead_of_who_came_later(swap: bool) -> None:
    stepper = Stepper(
        make_info(5, max_num_seqs=2),
        enable_prefix_caching=False,
        num_swap_blocks=4,
        preemption=FixedWay(swap),
    )
    stepper.submit(make_request("a", 7, max_tokens=6), make_request("b", 11, max_tokens=3))
    stepper.submit(make_request("later", 1, max_tokens=1))
    while not stepper.scheduler.load().num_preemptions:
        stepper.step()
    # It would fit, and it would find a place.
    assert [r.request_id for r in stepper.requests.waiting] == ["b", "later"]
    while "a" not in stepper.ends:
        assert [share[0] for share in stepper.step()] == ["a"]
    assert [share[0] for share in stepper.step()] == ["b", "later"]


def test_lengths_are_learned_from_answers_that_ended_by_themselves() -> None:
    prompt = range(100, 105)
    expected = expected_tokens(prompt, 3)
    forecast = FixedGrowth(0)
    stepper = Stepper(forecast=forecast)
    stepper.submit(
        make_request("stops", prompt, max_tokens=9, stop=(expected[2],)),
        make_request("as long as it may", 4, max_tokens=5),
        make_request("cancelled", 4, max_tokens=9),
    )
    stepper.step()
    stepper.requests.cancel("cancelled")
    stepper.run()
    assert forecast.observed == [3, 5]


def make_running(num_generated: int, max_tokens: int) -> Request:
    spec = make_request("a", 10, max_tokens=max_tokens)
    token_ids = [*spec.prompt_token_ids, *range(num_generated)]
    return Request(spec, 0, token_ids, 10 + max_tokens, leases=Lease.NONE, awaits_kv=False)


def test_a_share_of_the_mean_length_is_expected_of_everybody() -> None:
    forecast = MeanLength()
    # A fifth of 256 tokens, of which one may generate only 30 more.
    assert forecast.num_growth_tokens(make_running(0, 1000)) == 51
    assert forecast.num_growth_tokens(make_running(900, 1000)) == 51
    assert forecast.num_growth_tokens(make_running(70, 100)) == 30


@pytest.mark.parametrize(("length", "expected"), [(1000, 200), (10, 2)])
def test_the_mean_follows_what_is_measured(length: int, expected: int) -> None:
    forecast = MeanLength()
    for _ in range(400):
        forecast.observe(length)
    assert forecast.num_growth_tokens(make_running(0, 2000)) == expected
