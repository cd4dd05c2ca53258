"""Which ways there are to the KV of a prompt on a decode worker, each with what it is predicted to take."""

from __future__ import annotations

import enum
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from typing import Final, NamedTuple

from pagemesh.router.routing import cost
from pagemesh.router.routing.candidate import NO_USE, Candidate
from pagemesh.router.routing.cost import Forecast, Link, Site
from pagemesh.router.routing.peers import Peers

MAX_PREFILL_WORKERS: Final = 8
"""That are considered for one decode worker: those that would have computed the prompt first."""

MAX_EXPLORERS: Final = 2
"""Requests of a router that use a link at a time that was never measured: it may be a very slow one."""

OPTIMISM: Final = Link(bytes_per_second=1e9, latency_seconds=0.001)
"""What is believed of a link as long as nothing is known of it: so fast that it is tried."""


class Path(enum.Enum):
    """How the KV of a prompt comes to be; in order of how little it loads decode workers."""

    REMOTE = "remote"
    REMOTE_PULL = "remote_pull"
    PULL = "pull"
    LOCAL = "local"


class Claim(NamedTuple):
    """A worker, or a link to it, that one request keeps busy."""

    worker_id: str
    sender_id: str | None
    """Of a link."""
    seconds: float
    """From now on."""


@dataclass(frozen=True, slots=True)
class Way:
    """One way, with the workers on it."""

    path: Path
    forecast: Forecast
    prefill: Candidate | None = None
    """Who computes the prompt, if not the decode worker."""
    source: Candidate | None = None
    """Whose cache is pulled from."""

    def claims(self, decode: Candidate) -> Iterator[Claim]:
        """What the way keeps busy, and for how long."""
        computing = self.prefill or decode
        yield Claim(computing.worker_id, None, self.forecast.computed_at)
        if self.prefill is not None:
            yield Claim(decode.worker_id, self.prefill.worker_id, self.forecast.sent_at)
        if self.source is not None:
            yield Claim(computing.worker_id, self.source.worker_id, self.forecast.pulled_at)


class Ways:
    """The ways to one prompt's KV on one decode worker."""

    def __init__(self, decode: Candidate, peers: Peers) -> None:
        self.decode = decode
        self.peers = peers
        self._prompt = peers.prompt

    @cached_property
    def predicted(self) -> list[Way]:
        """Every way that is likely, none as long as no worker has computed a prompt."""
        peers = self.peers
        if not peers.is_measured:
            return []
        decode = peers.site(self.decode)
        ways = [Way(Path.LOCAL, cost.local(self._prompt, decode))]
        for source in peers.sources_beyond(self.decode):
            if _may_use(source, self.decode):
                link = self._source_link(source, self.decode)
                forecast = cost.pull(self._prompt, decode, self._held(source), link)
                ways.append(Way(Path.PULL, forecast, source=source))
        usable = (p for p in peers.prefill_workers_by_end if _may_use(p, self.decode))
        for prefill in islice(usable, MAX_PREFILL_WORKERS):
            ways += self._remote(decode, prefill)
        return ways

    @property
    def stored_seconds(self) -> float:
        """Of computing what the decode worker's cache would take in, wherever it comes from.

        Only where ways were predicted.
        """
        return cost.local(self._prompt, self.peers.site(self.decode)).compute_seconds

    def _remote(self, decode: Site, prefill: Candidate) -> Iterator[Way]:
        site, link = self.peers.site(prefill), _link(prefill, self.decode)
        yield Way(Path.REMOTE, cost.remote(self._prompt, decode, site, link), prefill)
        for source in self.peers.sources_beyond(prefill):
            if _may_use(source, prefill):
                source_link = self._source_link(source, prefill)
                forecast = cost.remote_pull(
                    self._prompt, decode, site, link, self._held(source), source_link
                )
                yield Way(Path.REMOTE_PULL, forecast, prefill, source)

    def _source_link(self, source: Candidate, receiver: Candidate) -> Link:
        """A link from a source, whose engine has to be asked first."""
        link = _link(source, receiver)
        answer_seconds = self.peers.site(source).answer_seconds
        return link._replace(latency_seconds=link.latency_seconds + answer_seconds)

    def _held(self, worker: Candidate) -> int:
        return min(worker.num_held_tokens, self._prompt.num_tokens)


def _may_use(sender: Candidate, receiver: Candidate) -> bool:
    if sender.worker_id in receiver.facts.links:
        return True
    return receiver.own.transfers.get(sender.worker_id, NO_USE).num_requests < MAX_EXPLORERS


def _link(sender: Candidate, receiver: Candidate) -> Link:
    """What is believed of a link: what was measured there, else the best of the receiver's links."""
    link = receiver.facts.links.get(sender.worker_id)
    if link is None:
        others = receiver.facts.links.values()
        link = max(others, key=lambda other: other.bytes_per_second, default=OPTIMISM)
    return link._replace(
        # Unknown where only short streams came over it yet, or such as were still computed.
        bytes_per_second=link.bytes_per_second or OPTIMISM.bytes_per_second,
        queue_seconds=receiver.own.transfers.get(sender.worker_id, NO_USE).busy_seconds,
    )
