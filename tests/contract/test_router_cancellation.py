"""What a client that leaves had of the router comes back at once, also where its work cannot be broken off."""

from __future__ import annotations

import asyncio
import threading

import pytest
from google.api.httpbody_pb2 import HttpBody

from pagemesh.tokenizer.tokenizer import NUM_INLINE_CHARS, Tokenizer
from tests.contract.http_answers import http_body, read
from tests.contract.router_harness import DEADLINE_S, Mesh, eventually, running_mesh
from tests.contract.test_router_failures import in_progress, num_busy

LONG_TEXT = "a" * (NUM_INLINE_CHARS + 1)


def long_prompt() -> HttpBody:
    return http_body({"prompt": LONG_TEXT, "max_tokens": 9})


async def until_in_progress(mesh: Mesh, number: int) -> None:
    async with asyncio.timeout(DEADLINE_S):
        while await in_progress(mesh) != number:  # noqa: ASYNC110  # each look is a call
            await asyncio.sleep(0.001)


async def test_a_client_that_leaves_while_its_prompt_becomes_tokens(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    begun, may_end, ended = threading.Event(), threading.Event(), threading.Event()

    def encode(tokenizer: Tokenizer, text: str, add_special_tokens: bool) -> list[int]:
        if len(text) > NUM_INLINE_CHARS:
            begun.set()
            assert may_end.wait(20)
            ended.set()
        return [10, 11, 12]

    monkeypatch.setattr(Tokenizer, "_encode", encode)
    async with running_mesh() as mesh:
        call = mesh.openai.Completions(long_prompt())
        await eventually(begun.is_set)
        assert await in_progress(mesh) == 1
        call.cancel()
        await until_in_progress(mesh, 0)
        assert not ended.is_set()
        may_end.set()
        await eventually(ended.is_set)
        # What the thread brought is nobody's.
        assert num_busy(mesh) == 0
        aborted = 'vllm:request_success_total{finished_reason="abort",model_name="demo"}'
        assert await mesh.metric(aborted) == 0


async def test_prompts_that_wait_for_a_thread_are_not_turned_into_tokens_any_more(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    num_begun, may_end = 0, threading.Event()

    def encode(tokenizer: Tokenizer, text: str, add_special_tokens: bool) -> list[int]:
        nonlocal num_begun
        if len(text) > NUM_INLINE_CHARS:
            num_begun += 1
            assert may_end.wait(20)
        return [10, 11, 12]

    monkeypatch.setattr(Tokenizer, "_encode", encode)
    async with running_mesh() as mesh:
        calls = [mesh.openai.Completions(long_prompt()) for _ in range(60)]
        await until_in_progress(mesh, len(calls))
        num_threads = num_begun
        assert 0 < num_threads < len(calls)
        for call in calls:
            call.cancel()
        await until_in_progress(mesh, 0)
        may_end.set()
        # The threads are free for others, and have begun nothing since.
        answer = await read(mesh.openai.Completions(long_prompt()))
        assert answer.status == 200
        assert num_begun == num_threads + 1
