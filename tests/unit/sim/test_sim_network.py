"""Streams of KV share the ports of their workers; times that can be computed by hand."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from pagemesh.sim.clock import Clock
from pagemesh.sim.model import LinkModel
from pagemesh.sim.network import Network

MEGABYTE = 1e6


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def network(clock: Clock) -> Network:
    return Network(clock, LinkModel(bytes_per_second=MEGABYTE, latency_seconds=0.0))


@pytest.fixture
def ends() -> dict[str, float]:
    return {}


def note(clock: Clock, ends: dict[str, float], name: str) -> Callable[[], object]:
    return lambda: ends.setdefault(name, clock.now)


def test_a_stream_alone_has_the_whole_port(
    clock: Clock, network: Network, ends: dict[str, float]
) -> None:
    network.send("a", "b", 2 * MEGABYTE, note(clock, ends, "ab"))
    clock.run(lambda: False)
    assert ends == {"ab": 2.0}


@pytest.mark.parametrize(
    ("second", "expected"),
    [
        # From one sender: half a second alone, then a second at half the rate; the rest alone again.
        (("a", "c"), {"first": 1.5, "second": 2.0}),
        (("c", "b"), {"first": 1.5, "second": 2.0}),
        # Elsewhere, and in the other direction, nothing is shared.
        (("c", "d"), {"first": 1.0, "second": 1.5}),
        (("b", "a"), {"first": 1.0, "second": 1.5}),
    ],
)
def test_streams_share_what_they_have_in_common(
    second: tuple[str, str],
    expected: dict[str, float],
    clock: Clock,
    network: Network,
    ends: dict[str, float],
) -> None:
    network.send("a", "b", MEGABYTE, note(clock, ends, "first"))
    clock.at(0.5, lambda: network.send(*second, MEGABYTE, note(clock, ends, "second")))
    clock.run(lambda: False)
    assert ends == pytest.approx(expected)


def test_a_cancelled_stream_never_ends_and_leaves_its_share(
    clock: Clock, network: Network, ends: dict[str, float]
) -> None:
    network.send("a", "b", MEGABYTE, note(clock, ends, "kept"))
    flow = network.send("a", "c", MEGABYTE, note(clock, ends, "cancelled"))
    clock.at(1.0, lambda: network.cancel(flow))
    clock.run(lambda: False)
    assert ends == pytest.approx({"kept": 1.5})


def test_with_a_worker_go_its_streams_in_both_directions(
    clock: Clock, network: Network, ends: dict[str, float]
) -> None:
    network.send("a", "b", MEGABYTE, note(clock, ends, "ab"))
    network.send("b", "c", MEGABYTE, note(clock, ends, "bc"))
    network.send("a", "c", MEGABYTE, note(clock, ends, "ac"))
    clock.at(0.5, lambda: network.lose("b"))
    clock.run(lambda: False)
    # A quarter is through by then, at half the rate.
    assert ends == pytest.approx({"ac": 1.25})
