"""SIGSTOP of a process in mid-stream: nothing is closed, and yet everybody notices within two seconds."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

import httpx
import openai
import pytest

from tests.mesh.harness import Mesh
from tests.mesh.test_kills import completion, long_stream

pytestmark = pytest.mark.costly

NOTICED_WITHIN_S = 2.0
LEEWAY_S = 0.5
"""For looking, on two busy cores; what is configured leaves 0.1 s of the two."""


@contextmanager
def frozen(mesh: Mesh, part: str) -> Iterator[None]:
    """A part that does nothing; it goes on at the end."""
    process = mesh.parts()[part]
    process.suspend()
    try:
        yield
    finally:
        process.resume()


def test_a_stream_through_a_frozen_router_ends_in_two_seconds_and_frees_its_blocks(
    fragile_mesh: Mesh,
) -> None:
    mesh = fragile_mesh
    with long_stream(mesh) as stream, frozen(mesh, "router"):
        frozen_at = time.monotonic()
        with pytest.raises((openai.APIError, httpx.TransportError)):
            for _ in stream:
                pass
        assert time.monotonic() - frozen_at < NOTICED_WITHIN_S + LEEWAY_S
        # The worker noticed as well, and not because the router told it.
        mesh.wait_until_worker_idle("decode-0")
    mesh.wait_until_idle()
    mesh.wait_until_complete()
    answer = mesh.client().completions.create(**completion("The capital of Italy is", 4))
    assert answer.choices[0].text
