"""Where requests go: warm workers, prefill workers, and what happens without the index."""

from __future__ import annotations

import asyncio
import json
import time

import grpc
import pytest

from pagemesh.config import MigrationConfig
from pagemesh.core.load import PrefillRate
from pagemesh.decode.service import DECODE_ROLE
from tests.contract.fake_worker import FakeWorker
from tests.contract.http_answers import http_body
from tests.contract.router_harness import DEADLINE_S, Mesh, running_mesh

PROMPT = list(range(10, 74))
NUM_BLOCKS = 64


async def warm_up(mesh: Mesh) -> FakeWorker:
    """Run the prompt once, wait until index and loads are up to date, and say who decoded it."""
    await mesh.completions({"prompt": PROMPT, "max_tokens": 2})
    deadline = time.monotonic() + DEADLINE_S
    decoders: list[str] = []
    while not decoders or await mesh.metric('vllm:num_requests_running{model_name="demo"}'):
        assert time.monotonic() < deadline, "the index never knew the prompt"
        await asyncio.sleep(0.01)
        decoders = [name for name in await mesh.holders(PROMPT) if name.startswith("decode")]
    assert len(decoders) == 1
    return mesh.workers[decoders[0]]


async def cached_tokens(mesh: Mesh) -> int:
    body = (await mesh.completions({"prompt": PROMPT, "max_tokens": 2})).json()
    return int(body["usage"]["prompt_tokens_details"]["cached_tokens"])


@pytest.mark.parametrize(("policy", "num_cached"), [("kv_aware", 63), ("least_loaded", 0)])
async def test_only_kv_aware_goes_to_the_busier_worker_that_holds_the_prompt(
    policy: str, num_cached: int
) -> None:
    # As fast as it says, however busy the machine is.
    rate = PrefillRate(seconds_per_token=0.01, num_tokens_per_step=512)
    async with running_mesh(
        decode=2, policy=policy, seconds_per_token=0.01, prefill_rate=rate
    ) as mesh:
        warm = await warm_up(mesh)
        request = {"prompt": [*PROMPT[:32], 99], "max_tokens": 300, "stream": True}
        busy = mesh.openai.Completions(http_body(request))
        await busy.read()
        assert warm.engine.num_free_blocks < NUM_BLOCKS
        assert await cached_tokens(mesh) == num_cached
        busy.cancel()


async def test_a_burst_spreads_before_any_worker_reports_its_load() -> None:
    async with running_mesh(decode=2, seconds_per_token=0.05, policy="least_loaded") as mesh:
        # Ten seconds long, so that none ends before the last has been placed.
        calls = [
            mesh.openai.Completions(
                http_body({"prompt": [10 + i] * 20, "max_tokens": 200, "stream": True})
            )
            for i in range(8)
        ]
        loads = [worker.engine.load for worker in mesh.workers.values()]
        deadline = time.monotonic() + DEADLINE_S
        while [load().num_running + load().num_waiting for load in loads] != [4, 4]:
            assert time.monotonic() < deadline, "the requests never ran four and four"
            await asyncio.sleep(0.005)
        for call in calls:
            assert await call.read() is not grpc.aio.EOF
            call.cancel()


def received(worker: FakeWorker) -> float:
    return worker.metric("pagemesh:kv_tokens_received_total")


def prefix_hits(worker: FakeWorker) -> float:
    return worker.metric("vllm:prefix_cache_hits_total", model_name="demo")


async def test_long_prompts_are_prefilled_remotely_and_short_ones_are_not() -> None:
    async with running_mesh(decode=1, prefill=1, remote_prefill_min_tokens=32) as mesh:
        decode = mesh.workers["decode-0"]
        await mesh.completions({"prompt": PROMPT[:31], "max_tokens": 2})
        assert received(decode) == 0
        await mesh.completions({"prompt": PROMPT[31:63], "max_tokens": 2})
        assert received(decode) == 32


async def test_a_cached_prompt_is_not_prefilled_remotely_again() -> None:
    async with running_mesh(decode=1, prefill=1) as mesh:
        await warm_up(mesh)
        before = received(mesh.workers["decode-0"])
        assert before > 0
        assert await cached_tokens(mesh) == 63
        assert received(mesh.workers["decode-0"]) == before


async def test_answers_do_not_depend_on_where_the_prompt_was_prefilled() -> None:
    request = {"prompt": PROMPT, "max_tokens": 12, "seed": 9}
    texts = set()
    for prefill in (0, 1):
        async with running_mesh(prefill=prefill) as mesh:
            body = (await mesh.completions(request)).json()
            texts.add(body["choices"][0]["text"])
    assert len(texts) == 1


async def test_without_the_kvstore_requests_are_routed_by_load() -> None:
    async with running_mesh(decode=2, explain_routes=True) as mesh:
        assert await lookup_told(mesh) == "answered"
        await mesh.kvstore.close()
        assert await lookup_told(mesh) == "failed"
        assert await mesh.metric("pagemesh:routing_without_index_total") == 1


async def test_a_prompt_without_a_full_block_is_looked_up_nowhere() -> None:
    async with running_mesh(decode=2, explain_routes=True) as mesh:
        assert await lookup_told(mesh, PROMPT[:15]) == "skipped"
        await mesh.kvstore.close()
        assert await lookup_told(mesh, PROMPT[:15]) == "skipped"
        assert await mesh.metric("pagemesh:routing_without_index_total") == 0


async def lookup_told(mesh: Mesh, prompt: list[int] = PROMPT) -> str:
    """What a client is told that came of asking the index."""
    request = {"prompt": prompt, "max_tokens": 2}
    answer = await mesh.completions(request, x_pagemesh_explain="true")
    assert answer.status == 200
    return str(json.loads(answer.headers["x-pagemesh-route"])["lookup"])


async def test_a_worker_alone_gets_its_requests_without_a_lookup() -> None:
    async with running_mesh(decode=1, explain_routes=True) as mesh:
        await mesh.kvstore.close()
        assert await lookup_told(mesh) == "skipped"
        assert await mesh.metric("pagemesh:routing_without_index_total") == 0


async def test_a_worker_that_comes_back_under_its_name_is_used_again() -> None:
    async with running_mesh(decode=1) as mesh:
        await mesh.remove("decode-0")
        await mesh.add(DECODE_ROLE, "decode-0")
        assert (await mesh.completions({"prompt": PROMPT})).status == 200


async def test_a_broken_session_is_opened_again() -> None:
    impatient = MigrationConfig(migration_timeout=0)
    async with running_mesh(decode=1, seconds_per_token=0.3, migration=impatient) as mesh:
        worker = mesh.workers["decode-0"]
        call = asyncio.create_task(mesh.completions({"prompt": PROMPT}))
        deadline = time.monotonic() + DEADLINE_S
        while worker.engine.num_free_blocks == NUM_BLOCKS:
            assert time.monotonic() < deadline
            await asyncio.sleep(0.01)
        await worker.kill()
        assert (await call).status == 503
        await worker.close()
        del mesh.workers["decode-0"]
        await mesh.add(DECODE_ROLE, "decode-0")
        assert (await mesh.completions({"prompt": PROMPT, "max_tokens": 1})).status == 200


async def test_the_answers_to_one_prompt_share_its_kv_on_one_worker() -> None:
    prompts = [PROMPT, PROMPT[::-1]]
    request = {"prompt": prompts, "n": 3, "seed": 5, "max_tokens": 40}
    async with running_mesh(
        decode=2, prefill=1, policy="least_loaded", seconds_per_token=0.005
    ) as mesh:
        body = (await mesh.completions(request)).json()
        decoders = [mesh.workers["decode-0"], mesh.workers["decode-1"]]
        hits = [prefix_hits(worker) for worker in decoders]
        # One prompt on each worker. It was prefilled remotely once; two answers took it from the first.
        assert [received(worker) for worker in decoders] == [64, 64]
        assert hits == [126, 126]
    alone = []
    async with running_mesh() as mesh:
        for prompt in prompts:
            for answer in range(3):
                single = {"prompt": prompt, "seed": 5 + answer, "max_tokens": 40}
                alone.append((await mesh.completions(single)).json()["choices"][0]["text"])
    assert [choice["text"] for choice in body["choices"]] == alone


async def test_all_answers_are_resubmitted_when_their_worker_is_lost_before_the_first() -> None:
    async with running_mesh(decode=2, seconds_per_token=0.3, policy="least_loaded") as mesh:
        call = asyncio.create_task(
            mesh.completions({"prompt": PROMPT, "n": 3, "seed": 5, "max_tokens": 3})
        )
        decoders = {name: mesh.workers[name] for name in ("decode-0", "decode-1")}
        deadline = time.monotonic() + DEADLINE_S
        while all(w.engine.num_free_blocks == NUM_BLOCKS for w in decoders.values()):
            assert time.monotonic() < deadline
            await asyncio.sleep(0.005)
        (busy,) = [n for n, w in decoders.items() if w.engine.num_free_blocks < NUM_BLOCKS]
        await decoders[busy].kill()
        answer = await call
        assert answer.status == 200
        assert len(answer.json()["choices"]) == 3
        assert await mesh.num_migrated("lost") == 3
        (other,) = decoders.keys() - {busy}
        # The first one was tried alone; the others found its prompt but for the last token.
        assert prefix_hits(decoders[other]) == 126
