"""What a tenant may begin, and what it is told when it may not."""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any

import pytest

from pagemesh.errors import RateLimitError
from pagemesh.router.tenants.allowance import Allowance, shown_seconds
from pagemesh.router.tenants.tenant import Limits, Tenant
from tests.fakes.clock import FakeClock


def make_allowance(num_routers: int = 1, **limits: Any) -> tuple[Allowance, FakeClock]:
    clock = FakeClock()
    return Allowance(Tenant("acme", Limits(**limits)), num_routers, clock), clock


def ask(allowance: Allowance) -> None:
    with allowance.request():
        pass


def use(allowance: Allowance, num_reserved: int, num_used: int) -> None:
    with allowance.tokens(num_reserved) as tally:
        tally.num_used = num_used


def test_without_limits_everything_passes_and_nothing_is_said() -> None:
    allowance, _ = make_allowance()
    for _ in range(100):
        ask(allowance)
        use(allowance, 10**9, 10**9)
    assert allowance.headers() == ()


def test_requests_beyond_the_minutes_pass_when_told() -> None:
    allowance, clock = make_allowance(requests_per_minute=6)
    for _ in range(6):
        ask(allowance)
    with pytest.raises(
        RateLimitError, match=r"for 'acme' on requests per minute: limit 6;"
    ) as found:
        ask(allowance)
    assert (found.value.retry_after, found.value.limit) == (10, "requests_per_minute")
    assert dict(allowance.headers()) == {
        "x-ratelimit-limit-requests": "6",
        "x-ratelimit-remaining-requests": "0",
        "x-ratelimit-reset-requests": "1m0s",
    }
    clock.advance(10)
    ask(allowance)
    with pytest.raises(RateLimitError):
        ask(allowance)


def test_a_request_is_charged_what_it_used_and_holds_what_it_reserved() -> None:
    allowance, _ = make_allowance(tokens_per_minute=100)
    with allowance.tokens(90) as tally:
        with pytest.raises(RateLimitError, match="limit 100, 10 left, 11 requested") as found:
            use(allowance, 11, 0)
        assert found.value.limit == "tokens_per_minute"
        assert found.value.retry_after == pytest.approx(0.6)
        use(allowance, 10, 10)
        tally.num_used = 40
    assert dict(allowance.headers())["x-ratelimit-remaining-tokens"] == "50"


def test_what_fails_is_charged_what_its_tally_says() -> None:
    allowance, _ = make_allowance(tokens_per_minute=100)
    with pytest.raises(ValueError, match="broken"), allowance.tokens(90) as tally:
        tally.num_used = 5
        raise ValueError("broken")
    assert dict(allowance.headers())["x-ratelimit-remaining-tokens"] == "95"


def test_an_open_end_can_cost_more_than_was_there() -> None:
    allowance, clock = make_allowance(tokens_per_minute=60)
    use(allowance, 10, 90)
    with pytest.raises(RateLimitError, match="0 left, 1 requested") as found:
        use(allowance, 1, 1)
    assert found.value.retry_after == pytest.approx(31)
    clock.advance(31)
    use(allowance, 1, 1)


def test_what_can_never_pass_is_told_both_numbers_and_no_time() -> None:
    allowance, _ = make_allowance(tokens_per_minute=100, num_routers=4)
    with pytest.raises(RateLimitError, match=r"needs 101 tokens .* is 100 tokens") as found:
        use(allowance, 101, 0)
    assert (found.value.retry_after, found.value.limit) == (None, "too_large")
    # Of four routers each has a part of the limit; what fits into the whole passes.
    use(allowance, 100, 100)


def test_concurrent_requests_are_those_that_run_now() -> None:
    allowance, _ = make_allowance(concurrent_requests=2)
    with ExitStack() as running:
        running.enter_context(allowance.request())
        running.enter_context(allowance.request())
        with pytest.raises(RateLimitError, match="limit 2, all of them running") as found:
            ask(allowance)
        assert (found.value.retry_after, found.value.limit) == (1, "concurrent_requests")
    ask(allowance)


def test_a_refused_request_costs_nothing() -> None:
    allowance, _ = make_allowance(requests_per_minute=10, concurrent_requests=1)
    with allowance.request():
        for _ in range(20):
            with pytest.raises(RateLimitError, match="concurrent"):
                ask(allowance)
    for _ in range(9):
        ask(allowance)


def test_routers_share_a_limit() -> None:
    allowance, _ = make_allowance(requests_per_minute=9, concurrent_requests=6, num_routers=3)
    for _ in range(3):
        ask(allowance)
    with pytest.raises(RateLimitError, match="limit 9 over 3 routers"):
        ask(allowance)


def test_each_router_lets_one_request_in_however_many_there_are() -> None:
    allowance, clock = make_allowance(requests_per_minute=2, concurrent_requests=1, num_routers=10)
    ask(allowance)
    with pytest.raises(RateLimitError) as found:
        ask(allowance)
    assert found.value.retry_after == pytest.approx(300)
    clock.advance(300)
    ask(allowance)


def test_new_limits_hold_at_once_and_know_what_was_used() -> None:
    allowance, _ = make_allowance(requests_per_minute=10)
    for _ in range(8):
        ask(allowance)
    allowance.change(Tenant("acme", Limits(requests_per_minute=9)))
    ask(allowance)
    with pytest.raises(RateLimitError):
        ask(allowance)
    allowance.change(Tenant("acme", Limits()))
    ask(allowance)


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [(0, "0s"), (0.0121, "13ms"), (1, "1s"), (1.5, "1.5s"), (59.9996, "60s"), (360, "6m0s")],
)
def test_times_are_shown_as_openai_does(seconds: float, shown: str) -> None:
    assert shown_seconds(seconds) == shown
