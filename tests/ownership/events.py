"""What may happen to a mesh, drawn from a seed, and shrunk to what matters when it ends badly."""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable, Sequence
from typing import Final, Literal, NamedTuple

SHRINK_SECONDS: Final = 20.0
"""A failing test should say why before its own time is over."""


class Route(NamedTuple):
    """Whom an import asks for KV."""

    kind: Literal["prefill", "fetch"]
    worker: int
    source: int | None = None
    """Of a prefill: whom that worker pulls the beginning of the prompt from."""


class Submit(NamedTuple):
    """A client wants tokens, from a request and its forks."""

    prompt: tuple[int, ...]
    max_tokens: int
    seed: int = 0
    priority: int = 0
    num_forks: int = 0
    stops: bool = False
    """At the first token."""
    routes: tuple[Route, ...] = ()
    """Asked one after the other for the prompt's KV; none: the worker computes it."""
    worker: int = 0


Who = Literal["worker", "sender", "receiver", "everybody"]


class Act(NamedTuple):
    """Somebody goes on with what there is to do, so many turns."""

    who: Who
    number: int
    """Which of them, counted round."""
    num_turns: int = 1


class Cancel(NamedTuple):
    """A client wants no more of its request."""

    number: int


class Break(NamedTuple):
    """A stream, or the connection that it is on, ends."""

    number: int


class Kill(NamedTuple):
    """A worker is gone; another one takes its place."""

    worker: int


Event = Submit | Act | Cancel | Break | Kill


def draw_prompt(rng: random.Random, block_size: int, max_blocks: int) -> tuple[int, ...]:
    """One of few families, so that prefixes are often shared, and sometimes whole prompts."""
    family = rng.choice((100, 200))
    shared = rng.randrange(1, block_size * max_blocks)
    if rng.random() < 0.4:
        shared -= shared % block_size
    own = [rng.randrange(300, 304) for _ in range(rng.choice((0, 0, 1, 2, 5)))]
    return (*(family + i % 97 for i in range(shared)), *own) or (family,)


def seeds(num_sequences: int) -> range:
    """Those of the sequences to play: the same each time, unless the environment asks for others or more."""
    first = int(os.environ.get("PAGEMESH_OWNERSHIP_SEED", "0"))
    factor = int(os.environ.get("PAGEMESH_OWNERSHIP_FACTOR", "1"))
    return range(first, first + num_sequences * factor)


def shrink(events: Sequence[Event], fails: Callable[[Sequence[Event]], bool]) -> list[Event]:
    """Leave out what can be left out so that it still fails, within a time limit.

    (Delta debugging, Zeller and Hildebrandt 2002, without its complements.)
    """
    deadline = time.monotonic() + SHRINK_SECONDS
    known = list(events)
    size = max(1, len(known) // 2)
    while time.monotonic() < deadline:
        start, removed = 0, False
        while start < len(known) and time.monotonic() < deadline:
            shorter = [*known[:start], *known[start + size :]]
            if fails(shorter):
                known, removed = shorter, True
            else:
                start += size
        if size == 1 and not removed:
            break
        size = max(1, size // 2)
    return known
