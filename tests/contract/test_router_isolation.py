"""Cached KV is shared within a tenant and a salt alone, on every way on which KV comes."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest

from pagemesh.core.engine import Pooling
from pagemesh.core.load import PrefillRate
from pagemesh.decode.service import DECODE_ROLE
from pagemesh.router.tenants.salt import tenant_salt
from tests.contract.http_answers import Answer, http_body, read
from tests.contract.measured_links import know_link
from tests.contract.router_harness import DEADLINE_S, Mesh, running_mesh

PROMPT = list(range(10, 80))
"""Four full blocks and six tokens."""

# So long that a prompt goes to whoever holds it, whatever a worker said a moment ago of what runs there.
RATE = PrefillRate(seconds_per_token=0.1, num_tokens_per_step=512)

ONE, OTHER = {"cache_salt": "one"}, {"cache_salt": "other"}
PARTIES: tuple[dict[str, str], ...] = ({}, ONE, OTHER)


def num_cached(answer: Answer) -> int:
    assert answer.status == 200, answer.data
    return int(answer.json()["usage"]["prompt_tokens_details"]["cached_tokens"])


async def cached(mesh: Mesh, party: dict[str, str], **body: Any) -> int:
    """Prompt tokens that nobody computed for the party."""
    return num_cached(await mesh.completions({"prompt": PROMPT, "max_tokens": 2, **party, **body}))


async def known(mesh: Mesh, party: dict[str, str]) -> None:
    """Wait until the index knows that a worker holds the party's prompt."""
    salt = tenant_salt("", party.get("cache_salt", ""))
    deadline = time.monotonic() + DEADLINE_S
    while max((await mesh.holders(PROMPT, salt)).values(), default=0) < 4:
        assert time.monotonic() < deadline, "the index never knew the prompt"
        await asyncio.sleep(0.01)


def received(mesh: Mesh, worker_id: str) -> float:
    return mesh.workers[worker_id].metric("pagemesh:kv_tokens_received_total")


@pytest.mark.parametrize(("decode", "prefill"), [(1, 0), (2, 0), (1, 1)])
async def test_nobody_meets_what_another_one_has_cached(decode: int, prefill: int) -> None:
    async with running_mesh(decode=decode, prefill=prefill, prefill_rate=RATE) as mesh:
        for party in PARTIES:
            assert await cached(mesh, party) == 0
            await known(mesh, party)
        if prefill:
            assert received(mesh, "decode-0") == len(PARTIES) * len(PROMPT)
        for party in PARTIES:
            assert await cached(mesh, party) == 64
            assert await cached(mesh, party, n=2) == 64


async def test_only_ones_own_blocks_are_pulled_from_another_worker() -> None:
    async with running_mesh(decode=0, remote_prefill_min_tokens=None, prefill_rate=RATE) as mesh:
        # Its context is too short for what follows.
        await mesh.add(DECODE_ROLE, "decode-short", max_model_len=80, prefill_rate=RATE)
        assert await cached(mesh, ONE) == 0
        await known(mesh, ONE)
        await mesh.add(DECODE_ROLE, "decode-0", prefill_rate=RATE)
        await know_link(mesh, "decode-0", "decode-short", bytes_per_second=1e9)
        assert await cached(mesh, OTHER, max_tokens=20) == 0
        assert received(mesh, "decode-0") == 0
        assert await cached(mesh, ONE, max_tokens=20) == 64
        assert received(mesh, "decode-0") == 64


async def test_embedded_prompts_are_apart_likewise() -> None:
    async with running_mesh(pooling=Pooling("last", normalize=False)) as mesh:

        async def embed(party: dict[str, str]) -> None:
            body = http_body({"input": PROMPT, **party})
            assert (await read(mesh.openai.Embeddings(body))).status == 200

        def hits() -> float:
            worker = mesh.workers["decode-0"]
            return worker.metric("vllm:prefix_cache_hits_total", model_name="demo")

        for party in PARTIES:
            await embed(party)
        assert hits() == 0
        for party in PARTIES:
            await embed(party)
        assert hits() == len(PARTIES) * 64


async def test_an_empty_salt_is_refused() -> None:
    async with running_mesh() as mesh:
        answer = await mesh.completions({"prompt": PROMPT, "cache_salt": ""})
    assert answer.status == 400
    assert answer.json()["error"]["param"] == "cache_salt"
