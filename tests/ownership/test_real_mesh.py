"""Random lives of requests on real servers: connections break and stall, workers are slow and are killed.

Afterwards every request has ended once, with the tokens of a lone run as far as it got, all blocks are
free, and nobody has read or written a block without a lease.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from functools import partial

import pytest

from pagemesh.engine import runner
from pagemesh.kv_transfer import frames, streams, transports
from pagemesh.rpc import channels, server
from tests.ownership.events import Event, seeds, shrink
from tests.ownership.real_mesh import RealMesh, draw_event, running_mesh

pytestmark = pytest.mark.costly

NUM_EVENTS = 20
NUM_SEQUENCES = 100


@pytest.fixture(autouse=True)
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have also tiny blocks leave in several messages, and while layers compute."""
    monkeypatch.setattr(frames, "MAX_PAYLOAD_BYTES", 256)
    monkeypatch.setattr(transports, "HOST_PART_BYTES", 256)
    monkeypatch.setattr(runner, "MIN_GROUP_BYTES", 1)


class FailedError(Exception):
    """A sequence that ended badly."""

    def __init__(self, seed: int, events: Sequence[Event]) -> None:
        super().__init__(seed)
        self.events = events


async def play(mesh: RealMesh, events: Sequence[Event]) -> None:
    async with asyncio.timeout(60):
        for event in events:
            await mesh.play(event)
        await mesh.finish()


async def play_alone(events: Sequence[Event], *, shares: bool) -> None:
    async with running_mesh(shares=shares) as mesh:
        await play(mesh, events)


async def play_all(seeds_to_play: Sequence[int], *, shares: bool) -> None:
    """One after another on the same workers, whose caches fill."""
    async with running_mesh(shares=shares) as mesh:
        for seed in seeds_to_play:
            rng = random.Random(seed)
            events = [draw_event(rng) for _ in range(NUM_EVENTS)]
            try:
                await play(mesh, events)
            except Exception as error:
                raise FailedError(seed, events) from error


def fails(events: Sequence[Event], *, shares: bool) -> bool:
    """Whether the sequence ends badly on workers of its own, this time."""
    try:
        asyncio.run(play_alone(events, shares=shares))
    except Exception:
        return True
    return False


def make_patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have nobody notice by itself that a link is stalled: what ends then was told to."""
    patience = {
        "grpc.keepalive_time_ms": 60_000,
        "grpc.keepalive_timeout_ms": 60_000,
        "grpc.http2.ping_timeout_ms": 60_000,
        "grpc.min_reconnect_backoff_ms": 60_000,
    }
    for module, name in ((channels, "_CHANNEL_OPTIONS"), (server, "SERVER_OPTIONS")):
        options = {**dict(getattr(module, name)), **patience}
        monkeypatch.setattr(module, name, tuple(options.items()))


@pytest.mark.parametrize("part", range(4))
def test_no_block_is_lost_or_shared_wrongly_and_every_request_ends(
    part: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    if part % 2:
        monkeypatch.setattr(streams, "STALL_TIMEOUT", 0.2)
    else:
        make_patient(monkeypatch)
    shares = part >= 2
    try:
        asyncio.run(play_all(seeds(NUM_SEQUENCES)[part::4], shares=shares))
    except FailedError as failed:
        events = failed.events
        still_fails = partial(fails, shares=shares)
        shortest = shrink(events, still_fails) if still_fails(events) else events
        error = failed.__cause__
        told = "\n".join(map(str, shortest))
        message = f"seed {failed}: {type(error).__name__}: {error}\n{told}"
        raise AssertionError(message) from failed
