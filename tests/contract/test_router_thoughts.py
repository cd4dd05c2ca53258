"""How many tokens were thoughts, as each API tells it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Sequence
from typing import Any

import pytest

from pagemesh.client import AsyncClient
from pagemesh.tokenizer import Tokenizer
from pagemesh.v1 import types_pb2
from tests.contract.http_answers import http_body, read
from tests.contract.router_harness import MODEL, Mesh, eventually, running_mesh
from tests.contract.scripted_worker import ScriptedDecode, scripted

TOKENIZER = Tokenizer(MODEL)
MESSAGES = [{"role": "user", "content": "hi"}]
ANSWERS = ["<think>hi hi</think>a", "a"]
NUM_THOUGHTS = len(TOKENIZER.encode_batch(["hi hi"], add_special_tokens=False)[0])


async def answered(
    worker: ScriptedDecode, call: Awaitable[Any], texts: Sequence[str], at_once: int
) -> Any:
    """What came of a call whose answers are these texts, so many tokens in each output."""
    worker.submits.clear()
    running = asyncio.ensure_future(call)
    await eventually(lambda: len(worker.submits) == len(texts))
    for submit, text in zip(worker.submits, texts, strict=True):
        ids = TOKENIZER.encode_batch([text], add_special_tokens=False)[0]
        for first in range(0, len(ids), at_once):
            is_last = first + at_once >= len(ids)
            reason = types_pb2.FINISH_REASON_LENGTH if is_last else None
            worker.answer(submit, token_ids=ids[first : first + at_once], finish_reason=reason)
    return await running


@pytest.mark.parametrize("at_once", [1, 3, 100])
async def test_thoughts_are_counted_alike_on_every_way(at_once: int) -> None:
    async with running_mesh(decode=0) as mesh, scripted(mesh) as worker:
        chat = {"messages": MESSAGES, "n": 2, "max_tokens": 50}
        expected = {"reasoning_tokens": NUM_THOUGHTS}
        for texts in (ANSWERS, ANSWERS[::-1]):
            whole = await answered(worker, mesh.chat(chat), texts, at_once)
            assert whole.json()["usage"]["completion_tokens_details"] == expected
            stream = {"stream": True, "stream_options": {"include_usage": True}}
            for more in ({}, {"include_reasoning": False}):
                body = {**chat, **stream, **more}
                streamed = await answered(worker, mesh.chat(body), texts, at_once)
                usage = streamed.events()[-2]["usage"]
                assert usage["completion_tokens_details"] == expected
        await check_other_apis(mesh, worker, at_once)


async def check_other_apis(mesh: Mesh, worker: ScriptedDecode, at_once: int) -> None:
    response = await answered(worker, mesh.responses({"input": "hi"}), ANSWERS[:1], at_once)
    details = response.json()["usage"]["output_tokens_details"]
    assert details == {"reasoning_tokens": NUM_THOUGHTS}
    async with AsyncClient(mesh.address) as client:
        answer = await answered(worker, client.complete(messages=MESSAGES), ANSWERS[:1], at_once)
    assert (answer.reasoning, answer.text) == ("hi hi", "a")
    assert answer.usage.num_reasoning_tokens == NUM_THOUGHTS


async def test_stop_strings_end_answers_and_no_thoughts() -> None:
    """Whichever API it is: a thought that says the string goes on, and the answer ends before it."""
    text = ["<think>so + 9: hi</think>It is + 9: so"]
    stop = [" + 9: "]
    async with running_mesh(decode=0) as mesh, scripted(mesh) as worker:
        chat = {"messages": MESSAGES, "max_tokens": 50, "stop": stop}
        (choice,) = (await answered(worker, mesh.chat(chat), text, 1)).json()["choices"]
        said = choice["message"]
        assert (said["reasoning"], said["content"]) == ("so + 9: hi", "It is")
        assert (choice["finish_reason"], choice["stop_reason"]) == ("stop", " + 9: ")
        streamed = await answered(worker, mesh.chat({**chat, "stream": True}), text, 1)
        deltas = [event["choices"][0]["delta"] for event in streamed.events()[:-1]]
        assert "".join(delta.get("reasoning") or "" for delta in deltas) == "so + 9: hi"
        assert "".join(delta.get("content") or "" for delta in deltas) == "It is"
        asked = {"messages": MESSAGES, "max_tokens": 50, "stop_sequences": stop}
        message = (await answered(worker, mesh.messages(asked), text, 1)).json()
        assert [block.get("text") for block in message["content"]] == [None, "It is"]
        assert message["content"][0]["thinking"] == "so + 9: hi"
        assert (message["stop_reason"], message["stop_sequence"]) == ("stop_sequence", " + 9: ")
        response = await answered(worker, mesh.responses({"input": "hi", "stop": stop}), text, 1)
        thoughts, answer = response.json()["output"]
        assert thoughts["content"][0]["text"] == "so + 9: hi"
        assert answer["content"][0]["text"] == "It is"
        async with AsyncClient(mesh.address) as client:
            call = client.complete(messages=MESSAGES, stop=stop)
            typed = await answered(worker, call, text, 1)
        assert (typed.reasoning, typed.text) == ("so + 9: hi", "It is")


async def test_plain_completions_have_no_thoughts() -> None:
    async with running_mesh(decode=0) as mesh, scripted(mesh) as worker:
        call = read(mesh.openai.Completions(http_body({"prompt": "hi", "max_tokens": 50})))
        answer = await answered(worker, call, ANSWERS[:1], 1)
        assert "completion_tokens_details" not in answer.json()["usage"]
