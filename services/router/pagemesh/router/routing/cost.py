"""Predicts how long each way to the KV of a prompt takes. Plain functions of plain numbers.

A way is over when the decode worker has the first token and the KV in front of it: from then on it goes on
by itself. All seconds count from now.
"""

from __future__ import annotations

from typing import NamedTuple

from pagemesh.core.load import PrefillRate


class Prompt(NamedTuple):
    """What is to be come by."""

    num_tokens: int
    num_bytes_per_token: float
    """KV of one token, over all layers."""
    num_layers: int


class Site(NamedTuple):
    """A worker that may compute the prompt."""

    rate: PrefillRate
    """Known, or taken from another worker."""
    queue_seconds: float
    """Until it has computed all that came before."""
    num_held_tokens: int
    """Leading tokens of the prompt in its prefix cache."""
    answer_seconds: float
    """Until its engine, which answers between two steps, grants blocks for what comes from elsewhere."""


class Link(NamedTuple):
    """The way of KV from one worker to another."""

    bytes_per_second: float
    latency_seconds: float
    queue_seconds: float = 0.0
    """Until what this router sent over it before is through."""


class Forecast(NamedTuple):
    """How one way would go."""

    seconds: float
    """Until the decode worker can go on by itself."""
    decode_seconds: float
    """Of these, those in which the decode worker computes: what it decodes meanwhile becomes slower."""
    computed_at: float
    """When the worker that computes is free for the next prompt."""
    compute_seconds: float
    """In which it computes."""
    pulled_at: float = 0.0
    """When the link from the source is free; 0 when nothing is pulled."""
    sent_at: float = 0.0
    """When the link from the prefill worker is free; 0 when there is none."""


def local(prompt: Prompt, decode: Site) -> Forecast:
    """The decode worker computes what it does not hold."""
    compute = _compute_seconds(prompt, decode.rate, decode.num_held_tokens)
    end = decode.queue_seconds + compute
    return Forecast(end, compute, end, compute)


def pull(prompt: Prompt, decode: Site, num_source_tokens: int, link: Link) -> Forecast:
    """The decode worker fetches what a source holds beyond it, while it is busy, and computes the rest."""
    fetched_at = decode.answer_seconds + _fetch_seconds(prompt, decode, num_source_tokens, link)
    compute = _compute_seconds(prompt, decode.rate, num_source_tokens)
    end = max(decode.queue_seconds, fetched_at) + compute
    return Forecast(end, compute, end, compute, pulled_at=fetched_at)


def remote(prompt: Prompt, decode: Site, prefill: Site, link: Link) -> Forecast:
    """A prefill worker computes what it does not hold, and sends what the decode worker does not hold."""
    starts_at = max(prefill.queue_seconds, decode.answer_seconds)
    return _prefill(prompt, decode, prefill, link, starts_at, prefill.num_held_tokens)


def remote_pull(
    prompt: Prompt,
    decode: Site,
    prefill: Site,
    link: Link,
    num_source_tokens: int,
    source_link: Link,
) -> Forecast:
    """Likewise, after the prefill worker fetched what a source holds beyond it, while it is busy."""
    asked_at = decode.answer_seconds + prefill.answer_seconds
    fetched_at = asked_at + _fetch_seconds(prompt, prefill, num_source_tokens, source_link)
    starts_at = max(prefill.queue_seconds, fetched_at)
    forecast = _prefill(prompt, decode, prefill, link, starts_at, num_source_tokens)
    return forecast._replace(pulled_at=fetched_at)


def _prefill(
    prompt: Prompt,
    decode: Site,
    prefill: Site,
    link: Link,
    starts_at: float,
    num_covered_tokens: int,
) -> Forecast:
    """A prefill that starts then, with KV of so many tokens, and is sent layer by layer meanwhile."""
    compute = _compute_seconds(prompt, prefill.rate, num_covered_tokens)
    # The last layer of the last chunk is all that cannot leave while something is still computed.
    num_last_tokens = min(
        _num_computed(prompt, num_covered_tokens), prefill.rate.num_tokens_per_step
    )
    last_bytes = num_last_tokens * prompt.num_bytes_per_token / prompt.num_layers
    num_sent_tokens = max(0, prompt.num_tokens - decode.num_held_tokens)
    transfer = num_sent_tokens * prompt.num_bytes_per_token / link.bytes_per_second
    sent_at = max(
        starts_at + compute + last_bytes / link.bytes_per_second,
        max(starts_at, link.queue_seconds) + transfer,
    )
    end = link.latency_seconds + sent_at
    return Forecast(end, 0.0, starts_at + compute, compute, sent_at=sent_at)


def _fetch_seconds(prompt: Prompt, site: Site, num_source_tokens: int, link: Link) -> float:
    num_tokens = max(0, num_source_tokens - site.num_held_tokens)
    transfer = num_tokens * prompt.num_bytes_per_token / link.bytes_per_second
    return link.latency_seconds + link.queue_seconds + transfer


def _num_computed(prompt: Prompt, num_covered_tokens: int) -> int:
    """The last token is always computed: out of it comes the first token of the answer."""
    return max(1, prompt.num_tokens - num_covered_tokens)


def _compute_seconds(prompt: Prompt, rate: PrefillRate, num_covered_tokens: int) -> float:
    num_computed = _num_computed(prompt, num_covered_tokens)
    seconds = rate.seconds(num_computed, prompt.num_tokens - num_computed)
    assert seconds is not None, "a site has a known rate"
    return seconds
