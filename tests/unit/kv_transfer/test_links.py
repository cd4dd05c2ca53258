"""Links are measured from the messages that were ready, whatever their senders compute meanwhile.

What is known of links is shown, and no longer than it is known; so are workers that did not deliver.
"""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pagemesh.core.load import LinkSpeed
from pagemesh.kv_transfer.links import MAX_SENDERS, KvFailure, KvFailures, LinkMeter, LinkMetrics
from pagemesh.telemetry.metrics import Metrics
from tests.fakes.clock import FakeClock

MB = 1_000_000


class Stream:
    """Streams of one sender over a link of a speed in bytes per second."""

    def __init__(self, speed: float = 100 * MB, latency: float = 0.002) -> None:
        self.clock = FakeClock()
        self.told: list[tuple[str, LinkSpeed | None]] = []
        self.meter = LinkMeter(lambda *news: self.told.append(news), self.clock)
        self.speed = speed
        self.latency = latency

    def run(self, *messages: tuple[int, float], sender: str = "p") -> None:
        """Each message has bytes, and the seconds that its sender computed before it had them."""
        timer = self.meter.begin(sender)
        self.clock.advance(self.latency)
        timer.on_message(0, 0.0)
        answered_at = here_at = self.clock()
        ready_seconds = 0.0
        for num_bytes, computing in messages:
            ready_seconds += computing
            here_at = max(here_at, answered_at + ready_seconds) + num_bytes / self.speed
            self.clock.advance(here_at - self.clock())
            timer.on_message(num_bytes, ready_seconds)
        timer.end()

    def run_twice(self, *messages: tuple[int, float], sender: str = "p") -> None:
        """Likewise, by which the link is measured."""
        self.run(*messages, sender=sender)
        self.run(*messages, sender=sender)

    @property
    def only(self) -> LinkSpeed:
        (speed,) = self.meter.speeds()
        return speed


def test_nothing_is_known_of_a_link_before_its_second_stream() -> None:
    stream = Stream()
    assert stream.meter.speeds() == []
    stream.run((MB, 0))
    assert (stream.meter.speeds(), stream.told) == ([], [])
    stream.run((MB, 0))
    assert stream.told == [("p", stream.only)]


@pytest.mark.parametrize("is_slow", [(True, False), (False, True)])
def test_one_bad_moment_of_a_new_link_is_not_believed(is_slow: tuple[bool, bool]) -> None:
    stream = Stream()
    for slow in is_slow:
        stream.speed, stream.latency = (MB, 0.2) if slow else (100 * MB, 0.002)
        stream.run((MB, 0))
    assert tuple(stream.only) == ("p", pytest.approx(100 * MB), pytest.approx(0.002))


def test_messages_that_were_ready_give_bytes_per_second() -> None:
    stream = Stream()
    stream.run_twice((MB, 0), (MB, 0), (MB, 0))
    assert tuple(stream.only) == ("p", pytest.approx(100 * MB), pytest.approx(0.002))


def test_a_sender_that_computes_does_not_make_its_link_slow() -> None:
    stream = Stream()
    stream.run_twice((MB, 0.5), (MB, 0), (MB, 0.5), (MB, 0), (MB, 0))
    assert stream.only.bytes_per_second == pytest.approx(100 * MB)


def test_a_link_that_is_slower_than_its_sender_computes_is_measured() -> None:
    stream = Stream(speed=1 * MB)
    # A message each 0.5 s, which takes a second.
    stream.run_twice(*[(MB, 0.5)] * 4)
    assert stream.only.bytes_per_second == pytest.approx(1 * MB)


def test_a_stream_that_was_never_ready_tells_latency_alone() -> None:
    stream = Stream()
    stream.run_twice((MB, 0.5), (MB, 0.5))
    assert tuple(stream.only) == ("p", 0.0, pytest.approx(0.002))


def test_a_short_stream_does_not_tell_the_speed() -> None:
    stream = Stream()
    stream.run_twice((64 * 1024 - 1, 0))
    assert stream.only.bytes_per_second == 0
    stream.run((64 * 1024, 0))
    assert stream.only.bytes_per_second == pytest.approx(100 * MB)


def test_a_stream_without_an_answer_tells_nothing() -> None:
    stream = Stream()
    stream.meter.begin("p").end()
    assert stream.meter.speeds() == []


def test_a_stream_counts_once() -> None:
    stream = Stream()
    stream.run()
    timer = stream.meter.begin("p")
    timer.on_message(0, 0.0)
    timer.end()
    timer.end()
    assert len(stream.told) == 1


def test_what_is_faster_is_believed_sooner_than_what_is_slower() -> None:
    stream = Stream(100 * MB)
    stream.run_twice((MB, 0))
    stream.speed = 50 * MB
    stream.run((MB, 0))
    assert stream.only.bytes_per_second == pytest.approx(100 * MB / 1.2)
    stream = Stream(50 * MB)
    stream.run_twice((MB, 0))
    stream.speed = 100 * MB
    stream.run((MB, 0))
    assert stream.only.bytes_per_second == pytest.approx(50 * MB / 0.75)


def test_a_link_that_became_slower_is_known_as_such_after_some_streams() -> None:
    stream = Stream(100 * MB)
    stream.run((MB, 0))
    stream.speed = 10 * MB
    for _ in range(15):
        stream.run((MB, 0))
    assert stream.only.bytes_per_second == pytest.approx(10 * MB, rel=0.05)


def test_a_bad_moment_is_forgotten_with_the_next_streams() -> None:
    stream = Stream(latency=0.1)
    stream.run_twice()
    stream.latency = 0.002
    for _ in range(6):
        stream.run()
    assert stream.only.latency_seconds == pytest.approx(0.0035, abs=0.0001)


def test_a_link_that_is_not_used_is_thought_faster_with_time_and_forgotten_in_the_end() -> None:
    stream = Stream(100 * MB, latency=0.004)
    stream.run_twice((MB, 0))
    stream.clock.advance(299)
    assert tuple(stream.only) == ("p", pytest.approx(100 * MB), pytest.approx(0.004))
    stream.clock.advance(302)
    assert tuple(stream.only) == ("p", pytest.approx(400 * MB), pytest.approx(0.001))
    stream.clock.advance(300 * 8)
    assert len(stream.meter.speeds()) == 1
    stream.clock.advance(300)
    assert stream.meter.speeds() == []
    assert stream.told[-1] == ("p", None)


def test_one_more_stream_brings_back_what_was_measured() -> None:
    stream = Stream(100 * MB)
    stream.run((MB, 0))
    stream.clock.advance(900)
    stream.run((MB, 0))
    assert stream.only.bytes_per_second == pytest.approx(100 * MB)


def test_links_are_kept_apart_and_are_no_more_than_256() -> None:
    stream = Stream()
    for number in range(256):
        stream.run_twice((MB, 0), sender=f"p{number}")
    stream.run((MB, 0), sender="p0")
    stream.run_twice((MB, 0), sender="new")
    senders = [speed.worker_id for speed in stream.meter.speeds()]
    assert len(senders) == 256
    assert "p1" not in senders
    assert {"p0", "new"} <= set(senders)
    assert ("p1", None) in stream.told


@given(
    st.lists(
        st.lists(st.tuples(st.integers(1, 10 * MB), st.sampled_from([0.0, 0.01, 1.0])), max_size=8),
        max_size=8,
    ),
    st.floats(1e5, 1e10),
)
def test_on_a_steady_link_the_speed_is_right_or_unknown(
    streams: list[list[tuple[int, float]]], speed: float
) -> None:
    stream = Stream(speed)
    for messages in streams:
        stream.run(*messages)
    for found in stream.meter.speeds():
        assert found.bytes_per_second == 0 or found.bytes_per_second == pytest.approx(
            speed, rel=0.01
        )


def test_a_link_is_shown_until_it_is_forgotten() -> None:
    metrics = Metrics()
    shown = LinkMetrics(metrics)

    def samples() -> list[float | None]:
        names = ("pagemesh:link_bytes_per_second", "pagemesh:link_latency_seconds")
        return [metrics.registry.get_sample_value(name, {"sender": "p"}) for name in names]

    shown.on_measured("p", LinkSpeed("p", 1e9, 0.002))
    assert samples() == [1e9, 0.002]
    shown.on_measured("p", LinkSpeed("p", 2e9, 0.001))
    assert samples() == [2e9, 0.001]
    shown.on_measured("p", None)
    assert samples() == [None, None]


def test_the_last_failure_of_each_sender_is_kept_with_their_number() -> None:
    clock = FakeClock()
    failures = KvFailures(clock)
    first = clock()
    failures.note("prefill-0", "it broke")
    failures.note("prefill-1", "it hung")
    clock.advance(2)
    failures.note("prefill-0", "it was wrong")
    assert failures.all() == [
        KvFailure("prefill-1", 1, "it hung", first),
        KvFailure("prefill-0", 2, "it was wrong", first + 2),
    ]


def test_who_failed_longest_ago_is_forgotten_first() -> None:
    failures = KvFailures(FakeClock())
    for number in range(MAX_SENDERS + 1):
        failures.note(f"prefill-{number}", "")
    assert len(failures.all()) == MAX_SENDERS
    assert failures.all()[0].worker_id == "prefill-1"
