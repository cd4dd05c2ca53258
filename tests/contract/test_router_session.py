"""What the router sends to a worker, and what it does when the worker answers badly or not at all."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from typing import Any

import pytest
from google.api.httpbody_pb2 import HttpBody

from pagemesh.config import MigrationConfig
from pagemesh.tokenizer import Tokenizer
from pagemesh.v1 import types_pb2
from tests.contract.http_answers import http_body, read
from tests.contract.router_harness import DEADLINE_S, MODEL, Mesh, eventually, running_mesh
from tests.contract.scripted_worker import scripted

PROMPT = list(range(10, 50))


@pytest.fixture
async def mesh() -> AsyncIterator[Mesh]:
    async with running_mesh(decode=0) as mesh:
        yield mesh


@pytest.fixture
async def limited_mesh() -> AsyncIterator[Mesh]:
    """Requests go on elsewhere once."""
    once = MigrationConfig(migration_limit=1, migration_timeout=0)
    async with running_mesh(decode=0, migration=once) as mesh:
        yield mesh


def body(**fields: Any) -> HttpBody:
    return http_body({"prompt": PROMPT, "max_tokens": 9, **fields})


async def test_a_submission_says_everything_about_the_request(mesh: Mesh) -> None:
    trace = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    async with scripted(mesh) as worker:
        metadata = (("x-request-id", "client-7"), ("traceparent", trace), ("tracestate", "a=1"))
        request = body(
            temperature=0.5,
            top_p=0.25,
            top_k=3,
            min_p=0.1,
            repetition_penalty=1.1,
            presence_penalty=-0.3,
            frequency_penalty=0.7,
            logit_bias={"12": -2.5},
            allowed_token_ids=[12, 13],
            logprobs=0,
            prompt_logprobs=2,
            seed=4,
            priority=-2,
            n=2,
        )
        call = mesh.openai.Completions(request, metadata=metadata)
        await eventually(lambda: len(worker.submits) == 2)
        first, second = worker.submits
        assert list(first.prompt_token_ids) == PROMPT
        assert first.sampling == types_pb2.SamplingParams(
            temperature=0.5,
            top_p=0.25,
            top_k=3,
            min_p=0.1,
            repetition_penalty=1.1,
            presence_penalty=-0.3,
            frequency_penalty=0.7,
            logit_bias={12: -2.5},
            allowed_token_ids=[12, 13],
            logprobs=0,
            prompt_logprobs=2,
            seed=4,
            max_tokens=9,
        )
        assert (second.sampling.seed, second.sampling.HasField("prompt_logprobs")) == (5, False)
        assert (first.request_id, second.request_id) == ("client-7-0", "client-7-1")
        assert (first.priority, first.traceparent, first.tracestate) == (-2, trace, "a=1")
        assert 15 < first.timeout.seconds < 20
        assert first.handle != second.handle
        assert (first.fork_of_handle, second.fork_of_handle) == (0, first.handle)
        assert not first.HasField("prefill_plan")
        call.cancel()


async def test_a_prefill_plan_names_the_prefill_worker() -> None:
    async with running_mesh(decode=0, prefill=1) as mesh, scripted(mesh) as worker:
        call = mesh.openai.Completions(body())
        await eventually(lambda: len(worker.submits) == 1)
        (peer,) = worker.submits[0].prefill_plan.workers
        assert peer.worker_id == "prefill-0"
        assert peer.address == mesh.workers["prefill-0"].server.address
        assert peer.epoch > 0
        call.cancel()


async def test_a_client_that_leaves_cancels_all_its_answers(mesh: Mesh) -> None:
    async with scripted(mesh) as worker:
        call = mesh.openai.Completions(body(n=2))
        await eventually(lambda: len(worker.submits) == 2)
        call.cancel()
        await eventually(lambda: len(worker.cancelled) == 2)
        assert worker.cancelled == [submit.handle for submit in worker.submits]


async def test_one_failed_answer_ends_the_request_and_cancels_the_others(mesh: Mesh) -> None:
    async with scripted(mesh) as worker:
        call = asyncio.create_task(read(mesh.openai.Completions(body(n=2))))
        await eventually(lambda: len(worker.submits) == 2)
        error = types_pb2.Error(code="DATA_LOSS", reason="KV_INTEGRITY", message="bad block")
        worker.answer(worker.submits[0], finish_reason=types_pb2.FINISH_REASON_ERROR, error=error)
        answer = await call
        assert (answer.status, answer.json()["error"]["message"]) == (500, "bad block")
        await eventually(lambda: worker.cancelled == [worker.submits[1].handle])


async def test_a_stop_string_frees_the_worker_while_other_answers_go_on(mesh: Mesh) -> None:
    async with scripted(mesh) as worker:
        stop = Tokenizer(MODEL).decode([700])
        call = mesh.openai.Completions(body(n=2, stop=stop, stream=True))
        await eventually(lambda: len(worker.submits) == 2)
        worker.answer(worker.submits[0], token_ids=[700])
        await eventually(lambda: worker.cancelled == [worker.submits[0].handle])
        assert not call.done()
        call.cancel()


@pytest.mark.parametrize(
    "late",
    [
        {"token_ids": [21], "finish_reason": types_pb2.FINISH_REASON_LENGTH},
        {"finish_reason": types_pb2.FINISH_REASON_CANCELLED},
        {
            "finish_reason": types_pb2.FINISH_REASON_ERROR,
            "error": types_pb2.Error(code="UNAVAILABLE", reason="WORKER_LOST", message="gone"),
        },
    ],
    ids=["tokens", "cancelled", "error"],
)
async def test_what_was_on_its_way_behind_a_stop_string_is_dropped(
    mesh: Mesh, late: dict[str, Any]
) -> None:
    async with scripted(mesh) as worker:
        tokenizer = Tokenizer(MODEL)
        request = body(n=2, stop=tokenizer.decode([700]))
        call = asyncio.create_task(read(mesh.openai.Completions(request)))
        await eventually(lambda: len(worker.submits) == 2)
        first, second = worker.submits
        worker.answer(first, token_ids=[20, 700])
        worker.answer(first, **late)
        worker.answer(second, token_ids=[22], finish_reason=types_pb2.FINISH_REASON_LENGTH)
        answer = (await call).json()
        assert [choice["text"] for choice in answer["choices"]] == [
            tokenizer.decode([20]),
            tokenizer.decode([22]),
        ]
        assert [choice["finish_reason"] for choice in answer["choices"]] == ["stop", "length"]
        assert answer["usage"]["completion_tokens"] == 3


async def test_tokens_that_come_together_stay_together(mesh: Mesh) -> None:
    async with scripted(mesh) as worker:
        call = asyncio.create_task(read(mesh.openai.Completions(body())))
        await eventually(lambda: len(worker.submits) == 1)
        submit = worker.submits[0]
        usage = types_pb2.PromptUsage(prompt_token_count=40, cached_token_count=32)
        worker.answer(submit, token_ids=[20, 21], prompt_usage=usage)
        worker.answer(submit, token_ids=[22], finish_reason=types_pb2.FINISH_REASON_LENGTH)
        usage = (await call).json()["usage"]
        assert usage["completion_tokens"] == 3
        assert usage["prompt_tokens_details"] == {"cached_tokens": 32}


async def test_cached_kv_that_never_came_is_not_in_the_usage(mesh: Mesh) -> None:
    async with scripted(mesh) as worker:
        call = asyncio.create_task(read(mesh.openai.Completions(body())))
        await eventually(lambda: len(worker.submits) == 1)
        submit = worker.submits[0]
        usage = types_pb2.PromptUsage(prompt_token_count=40, cached_token_count=32)
        worker.answer(submit, token_ids=[20], prompt_usage=usage)
        outcome = types_pb2.KvOutcome(path=types_pb2.KV_PATH_LOCAL)
        worker.answer(submit, token_ids=[21], kv_outcome=outcome)
        worker.answer(submit, token_ids=[22], finish_reason=types_pb2.FINISH_REASON_LENGTH)
        usage = (await call).json()["usage"]
        assert usage["prompt_tokens_details"] == {"cached_tokens": 0}


async def test_a_worker_that_refuses_is_left_for_another_so_often(
    limited_mesh: Mesh,
) -> None:
    mesh = limited_mesh
    error = types_pb2.Error(code="UNAVAILABLE", reason="DRAINING", message="stopping")
    failed = {"finish_reason": types_pb2.FINISH_REASON_ERROR, "error": error}
    async with scripted(mesh, "a") as first, scripted(mesh, "b") as second:
        deadline = time.monotonic() + DEADLINE_S
        while (await mesh.health())["decode_workers"] < 2:
            assert time.monotonic() < deadline
            await asyncio.sleep(0.01)
        call = asyncio.create_task(read(mesh.openai.Completions(body())))
        await eventually(lambda: len(first.submits) + len(second.submits) == 1)
        worker, other = (first, second) if first.submits else (second, first)
        worker.answer(worker.submits[0], **failed)
        await eventually(lambda: len(other.submits) == 1)
        other.answer(other.submits[0], **failed)
        answer = await call
        assert (answer.status, answer.json()["error"]["code"]) == (503, "draining")
        assert len(worker.submits) == len(other.submits) == 1


async def test_a_worker_that_says_that_it_stops_gets_nothing_more(mesh: Mesh) -> None:
    async with scripted(mesh, "a") as worker:
        first = asyncio.create_task(read(mesh.openai.Completions(body())))
        await eventually(lambda: len(worker.submits) == 1)
        worker.draining = True
        worker.answer(worker.submits[0], token_ids=[20])
        deadline = time.monotonic() + DEADLINE_S
        while (await mesh.health())["decode_workers"]:
            assert time.monotonic() < deadline
            await asyncio.sleep(0.01)
        assert (await read(mesh.openai.Completions(body()))).status == 503
        # What runs there goes on.
        worker.answer(
            worker.submits[0], token_ids=[21], finish_reason=types_pb2.FINISH_REASON_LENGTH
        )
        assert (await first).status == 200
        assert len(worker.submits) == 1


async def test_a_worker_that_cancels_on_its_own_is_reported(limited_mesh: Mesh) -> None:
    mesh = limited_mesh
    async with scripted(mesh) as worker:
        call = asyncio.create_task(read(mesh.openai.Completions(body())))
        await eventually(lambda: len(worker.submits) == 1)
        worker.answer(worker.submits[0], finish_reason=types_pb2.FINISH_REASON_CANCELLED)
        answer = await call
        assert (answer.status, answer.json()["error"]["code"]) == (503, "draining")


async def test_a_silent_worker_keeps_a_client_waiting_only_a_little_past_the_deadline() -> None:
    async with running_mesh(decode=0, request_timeout=0.3) as mesh, scripted(mesh) as worker:
        start = time.monotonic()
        answer = await read(mesh.openai.Completions(body()))
        assert (answer.status, answer.json()["error"]["code"]) == (504, "timeout")
        assert 1.0 < time.monotonic() - start < 5.0
        await eventually(lambda: len(worker.cancelled) == 1)
