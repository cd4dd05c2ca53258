"""What each way to a prompt's KV is predicted to take."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pagemesh.core.load import PrefillRate
from pagemesh.router.routing import cost
from pagemesh.router.routing.cost import Forecast, Link, Prompt, Site
from tests.unit.router.routing_builders import RATE

PROMPT = Prompt(num_tokens=1000, num_bytes_per_token=1000.0, num_layers=10)
FAST = Link(1e9, 0.01)
SLOW = Link(1e6, 0.01)  # a millisecond for a token, too


def site(held: int = 0, queue: float = 0.0, rate: PrefillRate = RATE) -> Site:
    return Site(rate, queue, held, answer_seconds=0.0)


def about(*fields: float) -> object:
    return pytest.approx(fields, abs=1e-9)


@pytest.mark.parametrize(
    ("held", "queue", "seconds", "computing"),
    [(0, 0.0, 1.0, 1.0), (900, 0.0, 0.1, 0.1), (900, 0.5, 0.6, 0.1), (1000, 0.0, 0.001, 0.001)],
)
def test_a_local_prefill_waits_and_computes_what_is_not_held_and_the_last_token_always(
    held: int, queue: float, seconds: float, computing: float
) -> None:
    assert tuple(cost.local(PROMPT, site(held, queue))) == about(
        seconds, computing, seconds, computing, 0, 0
    )


def test_pairs_and_steps_count() -> None:
    rate = PrefillRate(1e-3, 1e-6, 0.05, 400)
    # 600 tokens behind 400: two steps, 420,300 pairs.
    assert cost.local(PROMPT, site(400, rate=rate)).seconds == pytest.approx(0.6 + 0.4203 + 0.1)


def test_over_a_fast_link_a_remote_prefill_takes_its_compute_and_the_last_layer() -> None:
    # 512 tokens of one layer are 51,200 bytes.
    forecast = cost.remote(PROMPT, site(), site(), FAST)
    end = 1.0 + 51_200 / 1e9
    assert tuple(forecast) == about(0.01 + end, 0.0, 1.0, 1.0, 0.0, end)


def test_over_a_slow_link_a_remote_prefill_takes_as_long_as_the_transfer() -> None:
    link = Link(2.5e5, 0.01)
    assert tuple(cost.remote(PROMPT, site(), site(), link)) == about(4.01, 0.0, 1.0, 1.0, 0.0, 4.0)


def test_only_what_decode_misses_is_sent_and_only_what_prefill_misses_is_computed() -> None:
    # A tenth is computed, half is sent.
    forecast = cost.remote(PROMPT, site(held=500), site(held=900), SLOW)
    assert tuple(forecast) == about(0.51, 0.0, 0.1, 0.1, 0.0, 0.5)


def test_a_remote_prefill_waits_for_the_worker_and_then_for_the_link() -> None:
    assert cost.remote(PROMPT, site(), site(queue=2.0), SLOW).seconds == pytest.approx(3.0612)
    busy = SLOW._replace(queue_seconds=2.5)
    assert cost.remote(PROMPT, site(), site(queue=2.0), busy).seconds == pytest.approx(3.51)


def test_a_pull_takes_the_transfer_and_then_the_rest() -> None:
    assert tuple(cost.pull(PROMPT, site(), 800, SLOW)) == about(1.01, 0.2, 1.01, 0.2, 0.81, 0.0)


def test_what_is_held_is_not_pulled() -> None:
    assert cost.pull(PROMPT, site(held=700), 800, SLOW).seconds == pytest.approx(0.11 + 0.2)


def test_a_pull_goes_on_while_the_worker_is_busy_and_waits_for_the_link() -> None:
    assert cost.pull(PROMPT, site(queue=5.0), 800, SLOW).seconds == pytest.approx(5.2)
    busy = SLOW._replace(queue_seconds=1.0)
    assert tuple(cost.pull(PROMPT, site(), 800, busy)) == about(2.01, 0.2, 2.01, 0.2, 1.81, 0.0)


def test_a_pull_of_everything_computes_the_last_token() -> None:
    assert cost.pull(PROMPT, site(), 1000, FAST).decode_seconds == pytest.approx(0.001)


def test_a_prefill_worker_pulls_computes_the_rest_and_sends_everything() -> None:
    forecast = cost.remote_pull(PROMPT, site(), site(), FAST, 800, SLOW)
    end = 0.81 + 0.2 + 200 * 100 / 1e9
    assert tuple(forecast) == about(0.01 + end, 0.0, 1.01, 0.2, 0.81, end)


def test_a_busy_prefill_worker_pulls_meanwhile() -> None:
    forecast = cost.remote_pull(PROMPT, site(), site(queue=5.0), FAST, 800, SLOW)
    assert forecast.computed_at == pytest.approx(5.2)
    assert forecast.pulled_at == pytest.approx(0.81)


def test_what_comes_from_elsewhere_waits_until_the_engine_answers() -> None:
    busy = site()._replace(answer_seconds=0.3)
    assert cost.local(PROMPT, busy) == cost.local(PROMPT, site())
    assert cost.pull(PROMPT, busy, 800, SLOW).seconds == pytest.approx(0.3 + 1.01)
    before = cost.remote(PROMPT, site(), site(), SLOW).seconds
    assert cost.remote(PROMPT, busy, site(), SLOW).seconds == pytest.approx(0.3 + before)
    # A queue at the prefill worker becomes shorter meanwhile.
    queued = site(queue=0.2)
    assert cost.remote(PROMPT, busy, queued, SLOW).seconds == pytest.approx(0.3 + before)
    forecast = cost.remote_pull(PROMPT, busy, busy, FAST, 800, SLOW)
    assert forecast.pulled_at == pytest.approx(0.6 + 0.81)


SECONDS = st.floats(0, 100)
TOKENS = st.integers(0, 1000)
RATES = st.builds(
    PrefillRate,
    st.floats(0, 0.1),
    st.floats(0, 1e-4),
    st.floats(0, 0.1),
    st.integers(1, 4096),
    st.just(0.0),
)
SITES = st.builds(Site, RATES, SECONDS, TOKENS, SECONDS)
LINKS = st.builds(Link, st.floats(1e3, 1e11), st.floats(0, 1), SECONDS)


def all_ways(decode: Site, prefill: Site, link: Link, source: Link, held: int) -> list[Forecast]:
    decode_source, prefill_source = (
        max(held, decode.num_held_tokens),
        max(held, prefill.num_held_tokens),
    )
    return [
        cost.local(PROMPT, decode),
        cost.remote(PROMPT, decode, prefill, link),
        cost.pull(PROMPT, decode, decode_source, source),
        cost.remote_pull(PROMPT, decode, prefill, link, prefill_source, source),
    ]


@given(SITES, SITES, LINKS, LINKS, TOKENS)
def test_no_way_ends_before_what_it_consists_of(
    decode: Site, prefill: Site, link: Link, source: Link, held: int
) -> None:
    for forecast in all_ways(decode, prefill, link, source, held):
        assert forecast.seconds >= forecast.decode_seconds >= 0
        assert forecast.seconds >= max(forecast.computed_at, forecast.sent_at) * (1 - 1e-9)


@given(SITES, SITES, LINKS, LINKS, TOKENS, st.floats(1, 10))
def test_nothing_takes_longer_where_links_or_workers_are_faster(
    decode: Site, prefill: Site, link: Link, source: Link, held: int, factor: float
) -> None:
    before = all_ways(decode, prefill, link, source, held)

    def faster(link: Link) -> Link:
        return Link(
            link.bytes_per_second * factor, link.latency_seconds / factor, link.queue_seconds
        )

    def quicker(site: Site) -> Site:
        rate = site.rate._replace(
            seconds_per_token=site.rate.seconds_per_token / factor,
            seconds_per_pair=site.rate.seconds_per_pair / factor,
            seconds_per_step=site.rate.seconds_per_step / factor,
        )
        return site._replace(rate=rate)

    for after in (
        all_ways(decode, prefill, faster(link), faster(source), held),
        all_ways(quicker(decode), quicker(prefill), link, source, held),
    ):
        for one, other in zip(before, after, strict=True):
            assert other.seconds <= one.seconds * (1 + 1e-9)
