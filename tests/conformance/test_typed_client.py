"""pagemesh's own client, over gRPC through the gateway: it gets what OpenAI's client gets over HTTP."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from pagemesh.client import Client, StructuredOutputs, ToolCall
from pagemesh.errors import InvalidRequestError, UnsupportedError
from tests.conformance.conftest import Served
from tests.support.late_imports import openai

QUESTION: list[Any] = [{"role": "user", "content": "What is the capital of France?"}]
SUM: list[Any] = [{"role": "user", "content": "What is 3 + 4?"}]
NUMBERS = {
    "type": "object",
    "properties": {"b": {"enum": [4, 5]}, "a": {"type": "integer"}},
    "required": ["a", "b"],
    "additionalProperties": False,
}
TOOLS: list[Any] = [
    {"type": "function", "function": {"name": "clock"}},
    {
        "type": "function",
        "function": {"name": "add", "description": "Adds two numbers.", "parameters": NUMBERS},
    },
]
NAMED: Any = {"type": "function", "function": {"name": "add"}}


@pytest.fixture(scope="module")
def typed(served: Served) -> Iterator[Client]:
    with Client(served.mesh.address) as client:
        yield client


@pytest.fixture(scope="module")
def web(served: Served) -> openai.OpenAI:
    return served.mesh.client()


def test_a_conversation_is_answered_alike(typed: Client, web: openai.OpenAI) -> None:
    expected = web.chat.completions.create(
        model="demo", messages=QUESTION, temperature=0, extra_body={"return_token_ids": True}
    )
    answer = typed.complete(messages=QUESTION, session_id="s")
    assert answer.text == expected.choices[0].message.content
    assert list(answer.token_ids) == expected.choices[0].token_ids  # type: ignore[attr-defined]
    assert answer.finish_reason == expected.choices[0].finish_reason
    assert (answer.reasoning, answer.tool_calls) == ("", ())
    assert "".join(chunk.text for chunk in typed.generate(messages=QUESTION)) == answer.text


def test_several_answers_are_those_of_their_seeds(typed: Client, web: openai.OpenAI) -> None:
    expected = web.completions.create(
        model="demo", prompt="Once", n=3, seed=5, temperature=1.5, max_tokens=8
    )
    settings: Any = {"seed": 5, "temperature": 1.5, "max_tokens": 8}
    answers = typed.complete_all("Once", n=3, **settings)
    assert [answer.text for answer in answers] == [choice.text for choice in expected.choices]
    assert len({answer.text for answer in answers}) == 3
    assert answers[0].usage.num_completion_tokens == 24
    with pytest.raises(InvalidRequestError, match="n is 2, but complete gives one answer"):
        typed.complete("Once", n=2, max_tokens=2)
    with pytest.raises(InvalidRequestError, match="choice_count is 129, but must be at most 128"):
        typed.complete_all("Once", n=129)


@pytest.mark.parametrize("choice", [NAMED, "required"], ids=["named", "required"])
def test_tools_are_called_alike(typed: Client, web: openai.OpenAI, choice: Any) -> None:
    expected = web.chat.completions.create(
        model="demo", messages=SUM, tools=TOOLS, tool_choice=choice, parallel_tool_calls=False,
        temperature=0, max_tokens=200,
    ).choices[0]  # fmt: skip
    assert expected.message.tool_calls is not None
    wanted: Any = expected.message.tool_calls[0]
    settings: Any = {
        "messages": SUM, "tools": TOOLS, "tool_choice": choice, "parallel_tool_calls": False,
        "max_tokens": 200,
    }  # fmt: skip
    answer = typed.complete(**settings)
    (call,) = answer.tool_calls
    assert (call.name, call.arguments) == (wanted.function.name, wanted.function.arguments)
    assert call.id
    assert (answer.text, answer.finish_reason) == ("", expected.finish_reason)
    pieces = [piece for chunk in typed.generate(**settings) for piece in chunk.tool_calls]
    assert "".join(piece.arguments for piece in pieces) == call.arguments
    assert [piece.name for piece in pieces if piece.name] == [call.name]
    if choice is NAMED:
        assert json.loads(call.arguments)["b"] in (4, 5)


def test_calls_and_their_results_are_read_alike(typed: Client, served: Served) -> None:
    arguments = {"b": 4, "a": 3}
    called = {"id": "c1", "type": "function", "function": {"name": "add", "arguments": arguments}}
    messages: list[Any] = [
        *SUM,
        {"role": "assistant", "content": None, "tool_calls": [called], "reasoning": "Adding."},
        {"role": "tool", "tool_call_id": "c1", "content": "7"},
    ]
    body = {"model": "demo", "messages": messages, "tools": TOOLS, "max_tokens": 1}
    found = httpx.post(
        f"{served.mesh.url}/v1/chat/completions", json=body | {"return_token_ids": True}
    ).json()
    answer = typed.complete(messages=messages, tools=TOOLS, max_tokens=1)
    assert answer.usage.num_prompt_tokens == found["usage"]["prompt_tokens"]
    # The model reads schemas in the order of their keys, so that has to arrive.
    assert list(answer.token_ids) == found["choices"][0]["token_ids"]
    tokens = httpx.post(f"{served.mesh.url}/tokenize", json={"messages": messages}).json()["tokens"]
    assert typed.tokenize(messages=messages) == tokens


def test_structured_output_is_alike(typed: Client) -> None:
    city = StructuredOutputs.of(choice=["Rome", "Paris"])
    assert typed.complete(messages=QUESTION, structured_outputs=city).text == "Paris"
    # A form is that of answers; where a call has to come, there is none.
    called = typed.complete(
        messages=SUM, tools=TOOLS, tool_choice="required", structured_outputs=city
    )
    assert (called.text, len(called.tool_calls)) == ("", 1)


def test_texts_are_compared_alike(typed: Client, served: Served) -> None:
    texts = ["Paris is a city.", "a cat", "Rome is a city."]
    with httpx.Client(base_url=served.mesh.url) as http:
        scored = http.post("/v1/score", json={"text_1": texts[2], "text_2": texts}).json()
        ranked = http.post(
            "/v1/rerank", json={"query": texts[2], "documents": texts, "top_n": 2}
        ).json()
        embedded = http.post("/v1/embeddings", json={"input": [[20, 21, 22]]}).json()
    scores = typed.score(texts[2], texts)
    assert list(scores.values) == [each["score"] for each in scored["data"]]
    assert scores.usage.num_prompt_tokens == scored["usage"]["prompt_tokens"]
    ranking = typed.rerank(texts[2], texts, top_n=2)
    assert [(d.index, d.score) for d in ranking.documents] == [
        (each["index"], each["relevance_score"]) for each in ranked["results"]
    ]
    assert list(typed.embed([20, 21, 22]).vectors[0]) == embedded["data"][0]["embedding"]
    with pytest.raises(InvalidRequestError, match="first_texts has 2 entries and second_texts"):
        typed.score(texts[:2], texts)


@pytest.mark.parametrize(
    ("settings", "message", "param"),
    [
        (
            {"messages": [{"role": "clown", "content": "hi"}]},
            "chat.messages[0].role is 'clown', but must be system, user, assistant or tool",
            "chat.messages[0].role",
        ),
        ({"messages": []}, "chat.messages is empty", "chat.messages"),
        (
            {"messages": SUM, "tools": [{"function": {"name": "f", "parameters": "["}}]},
            "chat.tools[0].parameters is '[', but must be the text of a JSON object",
            "chat.tools[0].parameters",
        ),
        (
            {"messages": SUM, "tool_choice": "auto"},
            "chat.tool_choice needs tools, but there are none",
            "chat.tool_choice",
        ),
        (
            {"messages": SUM, "tools": TOOLS, "tool_choice": {"function": {"name": "subtract"}}},
            'chat.tool_name has "subtract", which is none of the tools',
            "chat.tool_name",
        ),
    ],
)
def test_errors_name_the_fields_of_the_message(
    typed: Client, settings: Any, message: str, param: str
) -> None:
    with pytest.raises((InvalidRequestError, UnsupportedError)) as caught:
        typed.complete(max_tokens=1, **settings)
    assert caught.value.message == message
    assert caught.value.param == param


def test_a_call_in_a_message_is_a_call_of_the_answer(typed: Client) -> None:
    """What an answer gives can be sent back as it is."""
    answer = typed.complete(messages=SUM, tools=TOOLS, tool_choice=NAMED, max_tokens=200)
    (call,) = answer.tool_calls
    assert call == ToolCall(0, call.id, "add", call.arguments)
    function = {"name": call.name, "arguments": call.arguments}
    messages = [
        *SUM,
        {"role": "assistant", "tool_calls": [{"id": call.id, "function": function}]},
        {"role": "tool", "tool_call_id": call.id, "content": "7"},
    ]
    assert typed.complete(messages=messages, tools=TOOLS, max_tokens=4).token_ids
