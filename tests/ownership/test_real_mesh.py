"""Random lives of requests on real servers: connections break and stall, workers are slow and are killed.

Afterwards every request has ended once, with the tokens of a lone run as far as it got, all blocks are
free, and nobody has read or written a block without a lease.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence

import pytest

from pagemesh.kvship import parts
from pagemesh.worker import kv_streams
from tests.ownership.events import Event, seeds
from tests.ownership.real_mesh import RealMesh, draw_event, running_mesh

NUM_EVENTS = 20
NUM_SEQUENCES = 100


@pytest.fixture(autouse=True)
def two_blocks_per_message(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parts, "MAX_PAYLOAD_BYTES", 256)


async def play(mesh: RealMesh, events: Sequence[Event]) -> None:
    for event in events:
        await mesh.play(event)
    await mesh.finish()


@pytest.mark.parametrize("part", range(4))
async def test_no_block_is_lost_or_shared_wrongly_and_every_request_ends(
    part: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    if part % 2:
        # A stalled sender is given up; else it is waited for until the request ends.
        monkeypatch.setattr(kv_streams, "STALL_TIMEOUT", 0.2)
    async with running_mesh() as mesh:
        for seed in seeds(NUM_SEQUENCES)[part::4]:
            rng = random.Random(seed)
            events = [draw_event(rng) for _ in range(NUM_EVENTS)]
            try:
                async with asyncio.timeout(60):
                    await play(mesh, events)
            except Exception as error:
                told = "\n".join(map(str, events))
                message = f"seed {seed}: {type(error).__name__}: {error}\n{told}"
                raise AssertionError(message) from error
