"""Which ways there are to the KV of a prompt on a decode worker, each with what it is predicted to take."""

from __future__ import annotations

import enum
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Final, NamedTuple

from pagemesh.engine.prefill_rate import PrefillRate
from pagemesh.router.routing import cost
from pagemesh.router.routing.candidate import NO_USE, Candidate, Role, RouteRequest
from pagemesh.router.routing.cost import Forecast, Link, Prompt, Site

MAX_SOURCES: Final = 4
"""Holders that are considered as sources, those of the longest prefixes."""

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
    """All ways to one prompt's KV on one decode worker."""

    def __init__(
        self, decode: Candidate, candidates: Sequence[Candidate], request: RouteRequest
    ) -> None:
        self.decode = decode
        self.request = request
        self._peers = [
            c
            for c in candidates
            if c.reachable
            and c.worker_id != decode.worker_id
            and c.worker_id not in request.excluded_worker_ids
            and c.facts.kv_kind == decode.facts.kv_kind
        ]
        layout = decode.facts.layout
        self._prompt = Prompt(
            request.num_prompt_tokens, layout.num_bytes / layout.block_size, layout.num_layers
        )
        # The decode worker too: a prefill worker may want what it holds.
        holders = sorted((decode, *self._peers), key=lambda c: (-c.num_held_blocks, c.worker_id))
        self._sources = [c for c in holders[:MAX_SOURCES] if c.num_held_blocks]
        # Whoever did not compute anything yet is taken to be as fast as the fastest that did: so it is tried.
        rates = (c.facts.prefill_rate for c in (decode, *self._peers))
        known = [rate for rate in rates if rate.is_known]
        self._assumed = min(known, key=self._whole_prompt_seconds, default=None)
        self._sites: dict[str, Site] = {}

    @property
    def prefill_workers(self) -> list[Candidate]:
        """Those that can compute the prompt, and whose KV the decode worker can take."""
        return [
            c
            for c in self._peers
            # A token more, the first of the output.
            if c.facts.role is Role.PREFILL and self._prompt.num_tokens < c.facts.max_model_len
        ]

    @cached_property
    def predicted(self) -> list[Way]:
        """Every way, none as long as no worker has computed a prompt."""
        if self._assumed is None:
            return []
        decode = self._site(self.decode)
        ways = [Way(Path.LOCAL, cost.local(self._prompt, decode))]
        for source in self._sources_beyond(self.decode):
            if self._may_use(source, self.decode):
                link = self._source_link(source, self.decode)
                forecast = cost.pull(self._prompt, decode, self._held(source), link)
                ways.append(Way(Path.PULL, forecast, source=source))
        for prefill in self.prefill_workers:
            if self._may_use(prefill, self.decode):
                ways += self._remote(decode, prefill)
        return ways

    def _remote(self, decode: Site, prefill: Candidate) -> Iterator[Way]:
        site, link = self._site(prefill), _link(prefill, self.decode)
        yield Way(Path.REMOTE, cost.remote(self._prompt, decode, site, link), prefill)
        for source in self._sources_beyond(prefill):
            if self._may_use(source, prefill):
                source_link = self._source_link(source, prefill)
                forecast = cost.remote_pull(
                    self._prompt, decode, site, link, self._held(source), source_link
                )
                yield Way(Path.REMOTE_PULL, forecast, prefill, source)

    def _sources_beyond(self, worker: Candidate) -> Iterator[Candidate]:
        """Sources that hold more than a worker that would pull."""
        for source in self._sources:
            if source is not worker and source.num_held_blocks > worker.num_coming_blocks:
                yield source

    def _may_use(self, sender: Candidate, receiver: Candidate) -> bool:
        if sender.worker_id in receiver.facts.links:
            return True
        return receiver.own.transfers.get(sender.worker_id, NO_USE).num_requests < MAX_EXPLORERS

    def _site(self, worker: Candidate) -> Site:
        site = self._sites.get(worker.worker_id)
        if site is None:
            site = self._sites[worker.worker_id] = self._make_site(worker)
        return site

    def _make_site(self, worker: Candidate) -> Site:
        facts = worker.facts
        rate = facts.prefill_rate if facts.prefill_rate.is_known else self._assumed
        assert rate is not None, "there are ways only when something was measured"
        reported = rate.queue_seconds(facts.num_pending_tokens)
        whole_step = rate.queue_seconds(rate.num_tokens_per_step)
        assert reported is not None, "the rate is known"
        assert whole_step is not None, "the rate is known"
        queue = max(reported, worker.own.queue_seconds)
        # In the middle of a step, if there is one.
        step = min(queue, whole_step) or (rate.seconds_per_step if facts.num_running else 0.0)
        # What is computed there for earlier requests is there when this one's turn comes.
        num_held_tokens = min(worker.num_coming_tokens, self._prompt.num_tokens)
        return Site(rate, queue, num_held_tokens, answer_seconds=step / 2)

    def _source_link(self, source: Candidate, receiver: Candidate) -> Link:
        """A link from a source, whose engine has to be asked first."""
        link = _link(source, receiver)
        answer_seconds = self._site(source).answer_seconds
        return link._replace(latency_seconds=link.latency_seconds + answer_seconds)

    def _held(self, worker: Candidate) -> int:
        return min(worker.num_held_tokens, self._prompt.num_tokens)

    def _whole_prompt_seconds(self, rate: PrefillRate) -> float:
        seconds = rate.seconds(self._prompt.num_tokens, 0)
        assert seconds is not None, "the rate is known"
        return seconds


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
