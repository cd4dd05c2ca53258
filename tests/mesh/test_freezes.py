"""SIGSTOP of a process in mid-stream: nothing is closed, and yet everybody notices within five seconds; a pause is no freeze."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

import httpx
import pytest

from tests.mesh.harness import Mesh
from tests.mesh.test_kills import completion, long_stream
from tests.support.late_imports import openai

pytestmark = pytest.mark.costly

NOTICED_WITHIN_S = 5.0
"""What is configured leaves almost a second of it, for looking on two busy cores."""
PAUSE_S = 2.0
"""For which a process may get no core on a machine that has too much to do."""


@contextmanager
def frozen(mesh: Mesh, part: str) -> Iterator[None]:
    """A part that does nothing; it goes on at the end."""
    process = mesh.parts()[part]
    process.suspend()
    try:
        yield
    finally:
        process.resume()


def test_a_stream_through_a_frozen_router_ends_in_five_seconds_and_frees_its_blocks(
    fragile_mesh: Mesh,
) -> None:
    mesh = fragile_mesh
    with long_stream(mesh) as stream, frozen(mesh, "router"):
        frozen_at = time.monotonic()
        with pytest.raises((openai.APIError, httpx.TransportError)):
            for _ in stream:
                pass
        assert time.monotonic() - frozen_at < NOTICED_WITHIN_S
        # The worker noticed as well, and not because the router told it.
        mesh.wait_until_worker_idle("decode-0")
    mesh.wait_until_idle()
    mesh.wait_until_complete()
    answer = mesh.client().completions.create(**completion("The capital of Italy is", 4))
    assert answer.choices[0].text


@pytest.mark.parametrize("part", ["gateway", "router", "decode-0", "kvstore"])
def test_a_stream_outlives_a_pause(fragile_mesh: Mesh, part: str) -> None:
    mesh = fragile_mesh
    with long_stream(mesh) as stream:
        with frozen(mesh, part):
            time.sleep(PAUSE_S)
        *_, last = (chunk.choices[0].finish_reason for chunk in stream if chunk.choices)
    assert last == "length"
    mesh.wait_until_idle()
