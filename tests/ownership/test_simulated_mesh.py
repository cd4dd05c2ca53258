"""Random lives of requests on a decode worker and two prefill workers, without processes or a network.

Steps, both ends of every stream, cancellations, broken streams and killed workers come in any order. Every
access to a block is checked against a ledger of leases, the books of all schedulers after every event; in
the end every request has ended once, with the tokens of a lone run as far as it got, and all blocks are
free.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest

from tests.ownership.events import Event, seeds, shrink
from tests.ownership.simulated_mesh import Mesh, Settings, draw_event

pytestmark = pytest.mark.costly

NUM_EVENTS = 60
NUM_SEQUENCES = 300


def play(settings: Settings, events: Sequence[Event]) -> None:
    mesh = Mesh(settings)
    for event in events:
        mesh.play(event)
    mesh.finish()


def check(seed: int) -> None:
    """Draw and play one sequence; fails with the shortest one found that fails."""
    rng = random.Random(seed)
    settings = Settings.draw(rng)
    block_size = settings.infos[0].layout.block_size
    events = [draw_event(rng, block_size) for _ in range(NUM_EVENTS)]
    try:
        play(settings, events)
    except Exception as error:
        kind = type(error)
        shortest = shrink(events, lambda shorter: fails(settings, shorter, kind))
        told = "\n".join(map(str, (settings, *shortest)))
        message = f"seed {seed}: {type(error).__name__}: {error}\n{told}"
        raise AssertionError(message) from error


def fails(settings: Settings, events: Sequence[Event], kind: type[Exception]) -> bool:
    try:
        play(settings, events)
    except kind:
        return True
    except Exception:
        return False
    return False


@pytest.mark.product(most=2)
@pytest.mark.parametrize("part", range(4))
def test_no_block_is_lost_or_shared_wrongly_and_every_request_ends(part: int) -> None:
    for seed in seeds(NUM_SEQUENCES)[part::4]:
        check(seed)
