"""Streams that are told several tokens at a time."""

from __future__ import annotations

from itertools import chain
from typing import Any

import pytest

from tests.contract.router_harness import Mesh, running_mesh
from tests.fakes.engine import expected_tokens

PROMPT = list(range(300, 308))
NUM_TOKENS = 24
REQUEST: dict[str, Any] = {
    "prompt": PROMPT, "seed": 1, "max_tokens": NUM_TOKENS, "stream": True, "return_token_ids": True,
}  # fmt: skip


async def told(mesh: Mesh, **fields: Any) -> list[list[int]]:
    """The tokens of each frame that has any."""
    *chunks, _ = (await mesh.completions(REQUEST | fields)).events()
    return [ids for chunk in chunks if (ids := chunk["choices"][0]["token_ids"])]


@pytest.mark.parametrize(("least", "asked", "expected"), [(1, 5, 5), (4, None, 4), (4, 2, 4)])
async def test_frames_have_so_many_tokens(least: int, asked: int | None, expected: int) -> None:
    async with running_mesh(num_blocks=256, seconds_per_token=0.01, stream_interval=least) as mesh:
        frames = await told(mesh, stream_interval=asked)
        assert tuple(chain(*frames)) == expected_tokens(PROMPT, NUM_TOKENS, 1)
        # Of a busy machine, there may be more at once.
        assert all(len(frame) >= expected for frame in frames[1:-1])
        assert len(frames) <= 2 + NUM_TOKENS // expected


async def test_a_stop_string_cuts_what_was_told_together() -> None:
    async with running_mesh(num_blocks=256) as mesh:
        whole = (await mesh.completions({**REQUEST, "stream": False})).json()["choices"][0]["text"]
        stop = whole[len(whole) // 2 :][:3]
        answers = [
            [
                chunk["choices"][0]
                for chunk in (
                    await mesh.completions({**REQUEST, "stop": stop, "stream_interval": interval})
                ).events()[:-1]
            ]
            for interval in (1, 7)
        ]
        one, seven = ("".join(choice["text"] for choice in choices) for choices in answers)
        assert one == seven == whole.partition(stop)[0]
        assert [choices[-1]["finish_reason"] for choices in answers] == ["stop", "stop"]


@pytest.mark.parametrize("interval", [0, "many", 1.5])
async def test_what_is_no_interval_is_refused(interval: object) -> None:
    async with running_mesh(num_blocks=64) as mesh:
        answer = await mesh.completions({**REQUEST, "stream_interval": interval})
        assert answer.status == 400
        assert answer.json()["error"]["param"] == "stream_interval"
