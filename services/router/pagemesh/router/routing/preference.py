"""Which of the ways to a prompt's KV is to be preferred."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from pagemesh.router.routing.candidate import Candidate
from pagemesh.router.routing.ways import Path, Way, Ways

NOISE: Final = 0.05
NOISE_SECONDS: Final = 0.001
"""What differs by less than one of these takes equally long: predictions are not better than that."""

DISTURBANCE: Final = 1 / 16
"""What a second of computing on the decode worker costs beside itself for each request that runs there,
whose next tokens it delays; at most another second. So a request never waits more than twice as long, for
the sake of the others, as it would have to."""

DISPLACEMENT: Final = 1 / 8
"""What enters a cache pushes as much out of it: this share of that is taken to be missed, and computed
again. Without it a prefix is pulled wherever it is a little sooner, until copies have pushed the only ones of
other prefixes out of all caches."""


def about(seconds: float) -> float:
    """What takes no longer than this is about as fast."""
    return max(seconds * (1 + NOISE), seconds + NOISE_SECONDS)


def stays_local(ways: Ways, min_tokens: int) -> bool:
    """Whether a prompt is computed where it is decoded, with this threshold for its uncached tokens."""
    num_uncached = ways.peers.prompt.num_tokens - ways.decode.num_coming_tokens
    return num_uncached < min_tokens or not ways.peers.prefill_workers


def permitted(ways: Ways, min_tokens: int | None) -> list[Way]:
    """Of the predicted ways, those that the operator wants."""
    if min_tokens is None:
        return ways.predicted
    is_local = stays_local(ways, min_tokens)
    return [
        way
        for way in ways.predicted
        if (way.path is Path.LOCAL if is_local else way.prefill is not None)
    ]


def cheapest(ways: Sequence[Way], decode: Candidate) -> Way:
    """Of the ways that take about as long as the best one, that which loads decode workers least.

    Then that which computes least.
    """
    limit = about(min(cost_of(way, decode) for way in ways))
    order = list(Path)
    return min(
        (way for way in ways if cost_of(way, decode) <= limit),
        key=lambda way: (
            order.index(way.path),
            way.forecast.compute_seconds,
            way.forecast.seconds,
        ),
    )


def cost_of(way: Way, decode: Candidate) -> float:
    """Seconds of the request itself, and those that it costs the ones that run on the decode worker."""
    return way.forecast.seconds + disturbance(decode) * way.forecast.decode_seconds


def disturbance(decode: Candidate) -> float:
    """What a second of computing on a decode worker costs those that run there, in seconds."""
    return min(1.0, DISTURBANCE * decode.facts.num_running)
