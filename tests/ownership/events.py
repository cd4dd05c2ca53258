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
    seconds: float = 60.0
    """That it may take."""
    is_stale: bool = False
    """Whether the routes name workers as they were before they were killed last."""


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


class Stall(NamedTuple):
    """Nothing goes to or from a worker until the next event that says so."""

    worker: int
    ends: bool = False


class Slow(NamedTuple):
    """Every step of a worker takes so long from now on, and so does every copy of KV."""

    worker: int
    step_seconds: float
    copy_seconds: float


class Pause(NamedTuple):
    """Nothing happens but what is going on."""

    seconds: float


class HangUp(NamedTuple):
    """A router drops all that it asked for."""


Event = Submit | Act | Cancel | Break | Kill | Stall | Slow | Pause | HangUp


def draw_prompt(
    rng: random.Random, block_size: int, max_blocks: int, num_families: int
) -> tuple[int, ...]:
    """Within a family prefixes are shared, and sometimes whole prompts."""
    family = 400 + 100 * rng.randrange(num_families)
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
