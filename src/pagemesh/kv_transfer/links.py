"""How fast KV comes from each other worker, measured where it is received, shown as metrics; and who did not deliver.

A stream whose sender still computes says only "at least so fast". So only messages count that the sender
had early enough to be here before the one in front of them was: their bytes, and the time between the two
arrivals. (TCP's BBR, Cardwell et al. 2016, likewise keeps samples apart in which the application was what
limited the rate.)
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from pagemesh.core.load import LinkSpeed
from pagemesh.telemetry.metrics import Metrics
from pagemesh.telemetry.metrics import transfer as declared

MIN_BYTES: Final = 64 * 1024
"""Bytes that were ready of a stream from which a rate is taken: fewer tell more of latency than of speed."""

ENOUGH_STREAMS: Final = 2
"""Streams by which a link is measured. The first one also connects, and finds memory cold; and any one may meet
a bad moment, for which its link would not be tried again for minutes. So the best of these is believed."""

FASTER: Final = 0.5
SLOWER: Final = 0.2
"""How much of a difference each further stream makes. What is faster is believed sooner: a stream may be slow
because others shared the link with it, but none is faster than the link."""

UNUSED_SECONDS: Final = 300.0
"""A link that was not used for so long is taken to be twice as fast as it was measured, again and again:
a bad moment must not keep a link from being tried again, and a slow link is tried rarely."""

MAX_DOUBLINGS: Final = 10
"""Then the link is forgotten, which makes it one that was never measured."""

MAX_LINKS: Final = 256
"""Links that are remembered; the one that was not used for longest goes first."""


@dataclass(slots=True)
class _Link:
    used_at: float
    num_streams: int = 0
    latency: float = math.inf
    seconds_per_byte: float = 0.0
    """0 while unknown."""


@dataclass(slots=True)
class StreamTimer:
    """The times of one stream, from the call on; `end` gives them to the meter, once."""

    _meter: LinkMeter
    _sender: str
    _began_at: float
    _answered_at: float | None = None
    _arrived_at: float = 0.0
    _ready_bytes: int = field(default=0)
    _ready_seconds: float = field(default=0.0)

    def on_message(self, num_bytes: int, ready_seconds: float) -> None:
        """A message is here, and what it carries is in place: so many bytes of KV.

        The sender had them `ready_seconds` after it had sent the first message, the header.
        """
        now = self._meter.clock()
        if self._answered_at is None:
            self._answered_at = now
        elif num_bytes and self._answered_at + ready_seconds <= self._arrived_at:
            self._ready_bytes += num_bytes
            self._ready_seconds += now - self._arrived_at
        self._arrived_at = now

    def end(self) -> None:
        """The stream is over, however it ended."""
        if self._answered_at is not None:
            latency = self._answered_at - self._began_at
            self._meter.learn(self._sender, latency, self._ready_bytes, self._ready_seconds)
            self._answered_at = None


class LinkMeter:
    """All links to one worker. Belongs to one event loop.

    `listener` is told of each link that was measured, and with None of one that was forgotten.
    """

    def __init__(
        self,
        listener: Callable[[str, LinkSpeed | None], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.clock = clock
        self._listener = listener
        self._links: dict[str, _Link] = {}

    def begin(self, sender: str) -> StreamTimer:
        """A stream from this worker is called for now."""
        return StreamTimer(self, sender, self.clock())

    def learn(self, sender: str, latency: float, ready_bytes: int, ready_seconds: float) -> None:
        """A stream answered after `latency` seconds, and brought so many ready bytes in so many seconds."""
        # Out and in again: the dict is ordered by when links were last used.
        link = self._links.pop(sender, None) or _Link(self.clock())
        self._links[sender] = link
        link.used_at = self.clock()
        link.num_streams += 1
        blend = min if link.num_streams <= ENOUGH_STREAMS else _blend
        link.latency = blend(link.latency, latency)
        if ready_bytes >= MIN_BYTES and ready_seconds > 0:
            measured = ready_seconds / ready_bytes
            link.seconds_per_byte = blend(link.seconds_per_byte or math.inf, measured)
        if len(self._links) > MAX_LINKS:
            self._forget(next(iter(self._links)))
        if link.num_streams >= ENOUGH_STREAMS:
            self._listener(sender, _speed(sender, link, doublings=0))

    def speeds(self) -> list[LinkSpeed]:
        """What is believed of the links now."""
        now = self.clock()
        found = []
        for sender, link in list(self._links.items()):
            doublings = int((now - link.used_at) / UNUSED_SECONDS)
            if doublings > MAX_DOUBLINGS:
                self._forget(sender)
            elif link.num_streams >= ENOUGH_STREAMS:
                found.append(_speed(sender, link, doublings))
        return found

    def _forget(self, sender: str) -> None:
        if self._links.pop(sender).num_streams >= ENOUGH_STREAMS:
            self._listener(sender, None)


def _blend(known: float, measured: float) -> float:
    """A time as it is believed after one more measurement; an only one is believed as it is."""
    if known == math.inf:
        return measured
    return known + (FASTER if measured < known else SLOWER) * (measured - known)


def _speed(sender: str, link: _Link, doublings: int) -> LinkSpeed:
    factor = 2.0**doublings
    per_second = factor / link.seconds_per_byte if link.seconds_per_byte else 0.0
    return LinkSpeed(sender, per_second, link.latency / factor)


class LinkMetrics:
    """A pair of gauges for each sender that a `LinkMeter` remembers."""

    def __init__(self, metrics: Metrics) -> None:
        self._speed = metrics.gauge(declared.LINK_BYTES_PER_SECOND)
        self._latency = metrics.gauge(declared.LINK_LATENCY_SECONDS)

    def on_measured(self, worker_id: str, link: LinkSpeed | None) -> None:
        """A link was measured, or forgotten when there is nothing to say of it."""
        if link is None:
            self._speed.remove(worker_id)
            self._latency.remove(worker_id)
            return
        self._speed.labels(worker_id).set(link.bytes_per_second)
        self._latency.labels(worker_id).set(link.latency_seconds)


MAX_SENDERS: Final = 64
"""Senders that are remembered; the one that failed longest ago goes first."""


class KvFailure(NamedTuple):
    """What one sender has to answer for."""

    worker_id: str
    num_failures: int
    message: str
    """Of the last one."""
    failed_at: float


class KvFailures:
    """The failures of one worker's senders. Belongs to one event loop."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.clock = clock
        self._failures: dict[str, KvFailure] = {}

    def note(self, worker_id: str, message: str) -> None:
        """A sender did not deliver."""
        before = self._failures.pop(worker_id, None)
        count = 1 if before is None else before.num_failures + 1
        self._failures[worker_id] = KvFailure(worker_id, count, message, self.clock())
        if len(self._failures) > MAX_SENDERS:
            del self._failures[next(iter(self._failures))]

    def all(self) -> list[KvFailure]:
        """Of all senders, those that failed last at the end."""
        return list(self._failures.values())
