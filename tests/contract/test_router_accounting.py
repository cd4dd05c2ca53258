"""What the router counts of prompts: asked for, available, captured, delivered."""

from __future__ import annotations

import asyncio
import time
from typing import NamedTuple

from pagemesh.config import SchedulerConfig
from pagemesh.core.engine import Pooling
from pagemesh.decode.service import DECODE_ROLE
from pagemesh.v1 import inference_pb2
from tests.contract.http_answers import http_body, read
from tests.contract.router_harness import DEADLINE_S, Mesh, running_mesh

PROMPT = list(range(10, 80))
"""Four full blocks and six tokens."""


class Counted(NamedTuple):
    """Tokens of prompts, over all ways."""

    queried: int
    available: int
    captured: int
    delivered: int


async def counted(mesh: Mesh, lookup: str = "answered") -> Counted:
    found = dict.fromkeys(Counted._fields, 0.0)
    for path in ("local", "remote", "pull", "remote_pull"):
        for name in found:
            labels = f'model_name="demo",path="{path}"'
            if name in ("queried", "delivered"):
                labels = f'lookup="{lookup}",{labels}'
            found[name] += await mesh.metric(f"pagemesh:prefix_tokens_{name}_total{{{labels}}}")
    return Counted(**{name: int(value) for name, value in found.items()})


async def known(mesh: Mesh, num_blocks: int) -> None:
    """Wait until the index knows that somebody holds so many blocks of the prompt."""
    deadline = time.monotonic() + DEADLINE_S
    while max((await mesh.holders(PROMPT)).values(), default=0) < num_blocks:
        assert time.monotonic() < deadline, "the index never knew the prompt"
        await asyncio.sleep(0.01)


async def cached_tokens(mesh: Mesh, **body: object) -> int:
    answer = (await mesh.completions({"prompt": PROMPT, "max_tokens": 2, **body})).json()
    return int(answer["usage"]["prompt_tokens_details"]["cached_tokens"])


async def test_each_prompt_counts_once_with_what_was_known_and_what_came() -> None:
    async with running_mesh(decode=2) as mesh:
        # In no cache.
        assert await cached_tokens(mesh) == 0
        assert await counted(mesh) == Counted(70, 0, 0, 0)
        await known(mesh, 4)
        assert await cached_tokens(mesh) == 64
        assert await counted(mesh) == Counted(140, 64, 64, 64)
        # Three answers share the prompt.
        assert await cached_tokens(mesh, n=3) == 64
        assert await counted(mesh) == Counted(210, 128, 128, 128)
        # Too short to be in any cache; shares a block with what is.
        assert (await mesh.completions({"prompt": PROMPT[:15]})).status == 200
        assert await counted(mesh) == Counted(210, 128, 128, 128)
        assert await counted(mesh, "skipped") == Counted(15, 128, 128, 0)
        # What is said of each token of a prompt comes from computing it.
        assert await cached_tokens(mesh, prompt_logprobs=1) == 0
        assert await counted(mesh) == Counted(210, 128, 128, 128)
        # The typed interface says so too.
        request = inference_pb2.GenerateRequest(
            token_ids=inference_pb2.TokenIds(ids=PROMPT), model="demo"
        )
        request.sampling.max_tokens = 2
        *_, last = [response async for response in mesh.inference.Generate(request)]
        assert last.usage.cached_token_count == 64
        assert await counted(mesh) == Counted(280, 192, 192, 192)
        assert await counted(mesh, "failed") == Counted(0, 192, 192, 0)
        # Without the index, nothing is said of what was available.
        await mesh.kvstore.close()
        num_delivered = await cached_tokens(mesh)
        assert await counted(mesh) == Counted(280, 192, 192, 192)
        assert await counted(mesh, "failed") == Counted(70, 192, 192, num_delivered)


async def test_a_prefill_workers_cache_is_captured_and_delivered() -> None:
    async with running_mesh(decode=1, prefill=1) as mesh:
        await mesh.completions({"prompt": PROMPT, "max_tokens": 2})
        await mesh.remove("decode-0")
        await mesh.add(DECODE_ROLE, "decode-1")
        await known(mesh, 4)
        assert await cached_tokens(mesh) == 64
        assert await counted(mesh) == Counted(140, 64, 64, 64)


async def test_a_worker_alone_is_sent_everything_without_a_lookup() -> None:
    async with running_mesh(decode=1) as mesh:
        assert await cached_tokens(mesh) == 0
        assert await cached_tokens(mesh) == 64
        assert await counted(mesh) == Counted(0, 0, 0, 0)
        assert await counted(mesh, "skipped") == Counted(140, 0, 0, 64)


async def test_prompts_that_are_embedded_count_likewise() -> None:
    async with running_mesh(decode=2, pooling=Pooling("last", normalize=False)) as mesh:
        request = http_body({"input": PROMPT, "model": "demo"})
        assert (await read(mesh.openai.Embeddings(request))).status == 200
        assert await counted(mesh) == Counted(70, 0, 0, 0)
        await known(mesh, 4)
        assert (await read(mesh.openai.Embeddings(request))).status == 200
        assert await counted(mesh) == Counted(140, 64, 64, 64)


async def test_a_prompt_counts_once_also_when_its_second_answer_begins_on_another_worker() -> None:
    one_by_one = SchedulerConfig(max_num_seqs=1)
    # So slow that the second answer has no token yet when it is known that the first is over.
    async with running_mesh(decode=3, seconds_per_token=0.5, scheduler=one_by_one) as mesh:
        body = {"prompt": PROMPT, "max_tokens": 2, "seed": 0, "n": 2, "stream": True}
        chunks = aiter(mesh.openai.Completions(http_body(body)))
        text = (await anext(chunks)).data
        while b'"finish_reason":"length"' not in text:
            text = (await anext(chunks)).data
        # The second answer waits there for the place of the first.
        loads = {worker: worker.engine.load() for worker in mesh.workers.values()}
        await next(w for w, load in loads.items() if load.num_running or load.num_waiting).kill()
        rest = b"".join([chunk.data async for chunk in chunks])
        assert b'"index":1' in rest and rest.endswith(b"data: [DONE]\n\n")
        assert await mesh.num_migrated("lost") == 1
        assert (await counted(mesh)).queried == 70


async def test_what_is_counted_of_requests_is_as_often_as_they_are() -> None:
    """Five with one answer, two with three."""
    async with running_mesh() as mesh:
        for num_answers in (1, 1, 1, 1, 1, 3, 3):
            answer = await mesh.completions({"prompt": PROMPT, "max_tokens": 2, "n": num_answers})
            assert answer.status == 200
        labels = '{model_name="demo"}'
        for name, number in (
            ("request_params_n_count", 7),
            ("request_params_n_sum", 11),
            ("request_params_max_tokens_count", 7),
            ("request_max_num_generation_tokens_count", 7),
            ("e2e_request_latency_seconds_count", 11),
            ("time_to_first_token_seconds_count", 11),
            ("request_prompt_tokens_count", 11),
            ("request_generation_tokens_count", 11),
            ("request_generation_tokens_sum", 22),
            ("generation_tokens_total", 22),
        ):
            assert await mesh.metric(f"vllm:{name}{labels}") == number, name
        ended = 'vllm:request_success_total{finished_reason="length",model_name="demo"}'
        assert await mesh.metric(ended) == 11
