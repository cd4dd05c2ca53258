"""OpenAI's client for Python."""

from __future__ import annotations

import asyncio
import json
import math
import re
from typing import Annotated, Any, Literal

import httpx
import pydantic
import pytest

from tests.conformance.conftest import DEMO, Same, Served
from tests.mesh.harness import MODEL, Mesh
from tests.support.late_imports import openai

CAPITAL: list[Any] = [{"role": "user", "content": "What is the capital of France?"}]


def questions(count: int) -> list[str]:
    lines = (DEMO / "questions.jsonl").read_text().splitlines()
    assert len(lines) >= count
    return [json.loads(line)["question"] for line in lines[:count]]


def test_a_chat_is_answered_at_once_and_as_a_stream(served: Served, same: Same) -> None:
    client = served.mesh.client()
    whole = client.chat.completions.create(model=MODEL, messages=CAPITAL, temperature=0)
    assert whole.choices[0].finish_reason == "stop"
    assert whole.model == MODEL
    content = whole.choices[0].message.content
    assert content is not None
    assert len(content) > 10
    assert whole.usage is not None
    assert whole.usage.total_tokens == whole.usage.prompt_tokens + whole.usage.completion_tokens

    stream = client.chat.completions.create(
        model=MODEL,
        messages=CAPITAL,
        temperature=0,
        stream=True,
        stream_options={"include_usage": True},
    )
    chunks = list(served.disturbed(stream))
    pieces = [chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices]
    assert "".join(pieces) == content
    assert [c.choices[0].finish_reason for c in chunks if c.choices][-1] == "stop"
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.total_tokens == whole.usage.total_tokens
    same(content, whole.usage.completion_tokens)


def test_a_completion_is_answered_at_once_and_as_a_stream(mesh: Mesh, same: Same) -> None:
    client = mesh.client()
    options: dict[str, Any] = {
        "model": MODEL,
        "prompt": "The capital of France",
        "max_tokens": 12,
        "temperature": 0,
        "extra_body": {"ignore_eos": True},
    }
    whole = client.completions.create(**options)
    assert whole.choices[0].finish_reason == "length"
    assert whole.usage is not None
    assert whole.usage.completion_tokens == 12
    chunks = list(client.completions.create(stream=True, **options))
    assert "".join(chunk.choices[0].text for chunk in chunks) == whole.choices[0].text
    same(whole.choices[0].text)


async def test_32_concurrent_requests_get_the_answers_that_they_get_alone(
    mesh: Mesh, same: Same
) -> None:
    client = openai.AsyncOpenAI(base_url=f"{mesh.url}/v1", api_key="none", max_retries=0)

    async def ask(question: str) -> str | None:
        answer = await client.chat.completions.create(
            model=MODEL,
            messages=[{"role": "user", "content": question}],
            temperature=0,
            max_tokens=48,
        )
        return answer.choices[0].message.content

    asked = questions(32)
    together = await asyncio.gather(*map(ask, asked))
    alone = [await ask(question) for question in asked]
    assert together == alone
    assert all(alone)
    same(alone)
    await client.close()


def test_the_same_seed_gives_the_same_answer_and_another_one_another(
    mesh: Mesh, same: Same
) -> None:
    client = mesh.client()

    def ask(seed: int) -> str | None:
        answer = client.completions.create(
            model=MODEL, prompt="Tell me a", max_tokens=24, temperature=1.5, seed=seed
        )
        return answer.choices[0].text

    assert ask(7) == ask(7)
    assert len({ask(seed) for seed in range(4)}) > 1
    same(ask(7))


def test_log_probabilities_are_read_by_the_client(mesh: Mesh, same: Same) -> None:
    client = mesh.client()
    options: dict[str, Any] = {"model": MODEL, "messages": CAPITAL, "temperature": 0}
    whole = client.chat.completions.create(logprobs=True, top_logprobs=2, **options)
    assert whole.choices[0].logprobs is not None
    content = whole.choices[0].logprobs.content or []
    assert whole.usage is not None
    # Of the content alone: the token that ended the answer is none of it.
    assert len(content) == whole.usage.completion_tokens - 1
    assert "".join(token.token for token in content) == whole.choices[0].message.content
    # A greedy token is the first of the likeliest.
    assert all(token.top_logprobs[0].token == token.token for token in content)
    assert all(len(token.top_logprobs) == 2 for token in content)
    assert all(token.top_logprobs[0].logprob >= token.top_logprobs[1].logprob for token in content)
    stream = client.chat.completions.create(logprobs=True, top_logprobs=2, stream=True, **options)
    streamed = [
        token.token
        for chunk in stream
        if chunk.choices and chunk.choices[0].logprobs
        for token in chunk.choices[0].logprobs.content or []
    ]
    assert streamed == [token.token for token in content]
    same(
        streamed,
        [[each.token for each in token.top_logprobs] for token in content],
        numbers=[each.logprob for token in content for each in token.top_logprobs],
    )


def test_what_is_forbidden_is_not_said(mesh: Mesh) -> None:
    client = mesh.client()

    def ask(**options: Any) -> str:
        answer = client.chat.completions.create(
            model=MODEL, messages=CAPITAL, temperature=0, max_tokens=20, **options
        )
        return answer.choices[0].message.content or ""

    assert "Paris" in ask()
    assert "Paris" not in ask(extra_body={"bad_words": ["Paris"]})


def test_answers_look_like_what_response_format_says(mesh: Mesh, same: Same) -> None:
    class Place(pydantic.BaseModel):
        city: Literal["Paris", "Rome"]
        people: Annotated[int, pydantic.Field(ge=1, le=999)]

    client = mesh.client()
    parsed = client.chat.completions.parse(
        model=MODEL, messages=CAPITAL, temperature=0, response_format=Place, max_tokens=200
    )
    assert parsed.choices[0].finish_reason == "stop"
    place = parsed.choices[0].message.parsed
    assert place is not None
    assert place.city == "Paris"
    stream = client.chat.completions.create(
        model=MODEL,
        messages=CAPITAL,
        temperature=1,
        seed=3,
        stream=True,
        extra_body={"structured_outputs": {"regex": "[A-Z][a-z]{4,9}!"}},
    )
    text = "".join(chunk.choices[0].delta.content or "" for chunk in stream)
    assert re.fullmatch("[A-Z][a-z]{4,9}!", text)
    same(place.people, text)


def test_the_model_is_listed_and_retrieved(mesh: Mesh) -> None:
    client = mesh.client()
    assert [model.id for model in client.models.list()] == [MODEL]
    assert client.models.retrieve(MODEL).id == MODEL


def test_health_and_metrics_are_served(mesh: Mesh) -> None:
    assert httpx.get(f"{mesh.url}/health").status_code == 200
    metrics = httpx.get(f"{mesh.url}/metrics")
    assert metrics.status_code == 200
    assert "vllm:time_to_first_token_seconds_bucket" in metrics.text


def test_texts_and_token_ids_are_embedded(mesh: Mesh, same: Same) -> None:
    client = mesh.client()
    texts = ["The capital of France is Paris.", "Paris is the capital of France.", "3 + 9 = 12."]
    answer = client.embeddings.create(model=MODEL, input=texts)
    assert answer.usage.prompt_tokens == answer.usage.total_tokens > 3 * len(texts)
    assert [item.index for item in answer.data] == [0, 1, 2]
    france, paris, numbers = [item.embedding for item in answer.data]
    for vector in (france, paris, numbers):
        assert math.hypot(*vector) == pytest.approx(1.0, abs=1e-6)
    near, far = (math.dist(france, other) for other in (paris, numbers))
    assert near < far
    # 300 vectors as text are more than a message holds.
    ids = [288, 284, 270, 1362, 266]
    many = client.embeddings.create(model=MODEL, input=[ids, *[[5]] * 299], encoding_format="float")
    assert len(many.data) == 300
    (one,) = client.embeddings.create(model=MODEL, input="The capital of France is").data
    assert one.embedding == many.data[0].embedding
    with pytest.raises(openai.BadRequestError, match="dimensions is 8") as caught:
        client.embeddings.create(model=MODEL, input="x", dimensions=8)
    assert caught.value.param == "dimensions"
    same(numbers=[*france, *paris])


ADD: Any = {
    "type": "function",
    "function": {
        "name": "add",
        "description": "Adds two numbers.",
        "parameters": {
            "type": "object",
            "properties": {"a": {"type": "integer"}, "b": {"enum": [4, 5]}},
            "required": ["a", "b"],
            "additionalProperties": False,
        },
    },
}
CLOCK: Any = {"type": "function", "function": {"name": "clock"}}
SUM: list[Any] = [{"role": "user", "content": "What is 3 + 4?"}]


def test_a_model_calls_the_tool_that_it_has_to_call(mesh: Mesh, same: Same) -> None:
    client = mesh.client()
    request: dict[str, Any] = {
        "model": MODEL,
        "messages": SUM,
        "tools": [CLOCK, ADD],
        "temperature": 0,
        "max_tokens": 200,
    }
    named: Any = {"type": "function", "function": {"name": "add"}}
    whole = client.chat.completions.create(**request, tool_choice=named).choices[0]
    assert whole.finish_reason == "stop"
    # As vLLM says it of calls that had to come.
    assert whole.message.content == ""
    assert whole.message.tool_calls is not None
    (call,) = whole.message.tool_calls
    assert call.type == "function"
    assert call.function.name == "add"
    arguments = json.loads(call.function.arguments)
    assert isinstance(arguments["a"], int)
    assert arguments["b"] in (4, 5)

    chunks = list(client.chat.completions.create(**request, tool_choice=named, stream=True))
    parts = [part for c in chunks for part in c.choices[0].delta.tool_calls or ()]
    assert {part.index for part in parts} == {0}
    assert [part.function.name for part in parts if part.function and part.function.name] == ["add"]
    streamed = "".join((part.function and part.function.arguments) or "" for part in parts)
    assert streamed == call.function.arguments
    assert "".join(c.choices[0].delta.content or "" for c in chunks) == ""

    required = client.chat.completions.create(
        **request, tool_choice="required", parallel_tool_calls=False
    ).choices[0]
    assert required.finish_reason == "tool_calls"
    assert required.message.tool_calls is not None
    assert len(required.message.tool_calls) == 1
    (call,) = required.message.tool_calls
    assert call.type == "function"
    # The answer goes back into the conversation with what the tool gave.
    result = {"role": "tool", "tool_call_id": call.id, "content": "7"}
    request["messages"] = [*SUM, required.message, result]
    last = client.chat.completions.create(**request, tool_choice="none").choices[0]
    assert last.message.tool_calls is None
    assert last.message.content
    same(call.function.arguments, last.message.content)


def test_an_answer_goes_on_where_the_conversation_ends(mesh: Mesh, same: Same) -> None:
    client = mesh.client()
    whole = client.chat.completions.create(model=MODEL, messages=CAPITAL, temperature=0)
    answer = whole.choices[0].message.content
    assert answer is not None
    begun = answer[: len(answer) // 2].rpartition(" ")[0]
    rest = client.chat.completions.create(
        model=MODEL,
        messages=[*CAPITAL, {"role": "assistant", "content": begun}],
        temperature=0,
        extra_body={"continue_final_message": True, "echo": True},
    )
    assert rest.choices[0].message.content == answer
    same(answer)


def test_vllms_fields_say_more_of_an_answer(mesh: Mesh, same: Same) -> None:
    client = mesh.client()
    endless = {"ignore_eos": True}
    more = {**endless, "return_token_ids": True, "include_stop_str_in_output": True}
    request: dict[str, Any] = {"model": MODEL, "prompt": "The capital of France", "seed": 1}
    plain = client.completions.create(**request, extra_body=endless).choices[0].text
    stop = plain[len(plain) // 2 :][:3]
    body = (
        client.completions.create(**request, stop=[stop], extra_body=more).choices[0].model_dump()
    )
    assert body["stop_reason"] == stop
    assert body["text"] == plain[: plain.index(stop) + len(stop)]
    chunks = list(client.completions.create(**request, stop=[stop], extra_body=more, stream=True))
    found = [chunk.choices[0].model_dump() for chunk in chunks]
    assert "".join(each["text"] for each in found) == body["text"]
    assert [i for each in found for i in each["token_ids"]] == body["token_ids"]
    assert found[0]["prompt_token_ids"] == body["prompt_token_ids"]
    by_ids = request | {"prompt": body["prompt_token_ids"]}
    again = client.completions.create(**by_ids, extra_body=endless)
    assert again.choices[0].text == plain
    same(plain, body["token_ids"], body["prompt_token_ids"])
