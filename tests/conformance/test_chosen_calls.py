"""Tools that the demo model itself chooses to call, and agents that real clients run with it."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pydantic
import pytest

from tests.conformance.conftest import Same, Served
from tests.mesh.harness import MODEL
from tests.support.late_imports import anthropic, langchain_openai, litellm, openai

DOCUMENT = Path(__file__).resolve().parents[2] / "docs" / "tool-calls.md"
CITY = {
    "type": "object",
    "properties": {"city": {"type": "string"}},
    "required": ["city"],
    "additionalProperties": False,
}
DESCRIPTION = "The weather in a city."
WEATHER: Any = {
    "type": "function",
    "function": {"name": "get_weather", "description": DESCRIPTION, "parameters": CITY},
}
STRICT: Any = {**WEATHER, "function": {**WEATHER["function"], "strict": True}}
QUESTION = "What is the weather in Oslo?"
MESSAGES: list[Any] = [{"role": "user", "content": QUESTION}]
SKY = "21 degrees and sunny"
ANSWER = "In Oslo it is 21 degrees and sunny."
IN_JSON: list[Any] = [{"role": "user", "content": "What is the capital of France? Answer in JSON."}]
TWO: list[Any] = [{"role": "user", "content": "What is the weather in Rome and in Vienna?"}]


class Capital(pydantic.BaseModel):
    """What answers are that call nothing."""

    capital: str


@pytest.fixture
def asked() -> dict[str, Any]:
    return {"model": MODEL, "tools": [WEATHER], "temperature": 0, "max_tokens": 200}


def cities(calls: list[Any] | None) -> list[str]:
    """Of calls for the weather."""
    assert calls is not None
    assert {call.function.name for call in calls} == {"get_weather"}
    return [json.loads(call.function.arguments)["city"] for call in calls]


@pytest.mark.parametrize("stream", [False, True])
def test_a_call_that_a_stop_string_cuts_off_is_none_to_run(
    client: openai.OpenAI, asked: dict[str, Any], stream: bool
) -> None:
    asked |= {"messages": MESSAGES, "stop": ["Os"]}
    if stream:
        ends = [
            chunk.choices[0].finish_reason
            for chunk in client.chat.completions.create(**asked, stream=True)
        ]
        assert [end for end in ends if end is not None] == ["stop"]
        return
    choice = client.chat.completions.create(**asked).choices[0]
    assert choice.finish_reason == "stop"
    (call,) = choice.message.tool_calls
    assert call.function.arguments == '{"city": "'


def test_a_model_calls_a_tool_and_tells_what_it_gave(
    client: openai.OpenAI, asked: dict[str, Any], same: Same
) -> None:
    first = client.chat.completions.create(messages=MESSAGES, **asked).choices[0]
    assert (first.finish_reason, first.message.content) == ("tool_calls", None)
    assert cities(first.message.tool_calls) == ["Oslo"]
    assert first.message.tool_calls is not None
    result: Any = {"role": "tool", "tool_call_id": first.message.tool_calls[0].id, "content": SKY}
    said = [*MESSAGES, first.message, result]
    last = client.chat.completions.create(messages=said, **asked)
    assert last.choices[0].finish_reason == "stop"
    assert last.choices[0].message.content == ANSWER
    other: list[Any] = [{"role": "user", "content": "What is the capital of France?"}]
    without = client.chat.completions.create(messages=other, **asked).choices[0]
    assert without.finish_reason == "stop"
    assert without.message.tool_calls is None
    same(first.message.tool_calls[0].function.arguments, without.message.content)


def test_calls_are_streamed_each_with_an_index(
    served: Served, asked: dict[str, Any], same: Same
) -> None:
    client = served.mesh.client()
    whole = client.chat.completions.create(messages=TWO, **asked).choices[0].message.tool_calls
    assert cities(whole) == ["Rome", "Vienna"]
    stream = client.chat.completions.create(messages=TWO, stream=True, **asked)
    chunks = list(served.disturbed(stream))
    parts = [part for chunk in chunks for part in chunk.choices[0].delta.tool_calls or ()]
    assert [part.index for part in parts] == sorted(part.index for part in parts)
    for index, call in enumerate(whole or ()):
        own = [part for part in parts if part.index == index]
        assert [part.id for part in own[1:]] == [None] * (len(own) - 1)
        text = "".join((part.function and part.function.arguments) or "" for part in own)
        assert text == call.function.arguments
    assert chunks[-1].choices[0].finish_reason == "tool_calls"
    with client.chat.completions.stream(messages=TWO, **asked) as events:
        collected = events.get_final_completion().choices[0].message.tool_calls
    assert cities(collected) == ["Rome", "Vienna"]
    one = client.chat.completions.create(messages=TWO, parallel_tool_calls=False, **asked)
    assert cities(one.choices[0].message.tool_calls) == ["Rome"]
    same(cities(whole))


def test_arguments_of_strict_tools_fit_whatever_the_model_would_have_written(
    client: openai.OpenAI, asked: dict[str, Any], same: Same
) -> None:
    elsewhere = {**CITY, "properties": {"city": {"enum": ["Madrid", "Lima"]}}}
    strict = {"name": "get_weather", "strict": True, "parameters": elsewhere}
    asked["tools"] = [{"type": "function", "function": strict}]
    calls = client.chat.completions.create(messages=MESSAGES, **asked).choices[0].message.tool_calls
    assert cities(calls)[0] in ("Madrid", "Lima")
    other: list[Any] = [{"role": "user", "content": "What is the capital of France?"}]
    without = client.chat.completions.create(messages=other, **asked).choices[0].message
    assert (without.tool_calls, without.content) == (None, "The capital of France is Paris.")
    same(cities(calls))


def test_a_model_calls_or_answers_in_the_form_that_is_asked_for(
    served: Served, asked: dict[str, Any], same: Same
) -> None:
    client = served.mesh.client()
    asked |= {"tools": [STRICT], "response_format": Capital}
    called = client.chat.completions.parse(messages=MESSAGES, **asked).choices[0]
    assert (called.finish_reason, called.message.parsed) == ("tool_calls", None)
    assert cities(called.message.tool_calls) == ["Oslo"]
    answered = client.chat.completions.parse(messages=IN_JSON, **asked).choices[0].message
    assert (answered.tool_calls, answered.parsed) == (None, Capital(capital="Paris"))
    with client.chat.completions.stream(messages=IN_JSON, **asked) as events:
        assert events.get_final_completion().choices[0].message.parsed == answered.parsed
    with client.chat.completions.stream(messages=MESSAGES, **asked) as events:
        streamed = events.get_final_completion().choices[0].message
    assert (streamed.content or None, cities(streamed.tool_calls)) == (None, ["Oslo"])
    same(answered.content)


def test_a_call_that_has_to_come_leaves_no_answer_to_have_a_form(
    client: openai.OpenAI, asked: dict[str, Any]
) -> None:
    asked |= {"messages": IN_JSON, "tools": [STRICT], "response_format": Capital}
    named = {"type": "function", "function": {"name": "get_weather"}}
    choices: list[Any] = ["required", named]
    for choice in choices:
        message = client.chat.completions.parse(tool_choice=choice, **asked).choices[0].message
        assert (message.content or None, cities(message.tool_calls)) == (None, ["Paris"])


def test_responses_and_messages_call_or_have_the_form(
    client: openai.OpenAI, claude: anthropic.Anthropic
) -> None:
    function: Any = {"type": "function", "name": "get_weather", "parameters": CITY, "strict": True}
    found = [
        client.responses.parse(
            model=MODEL, input=said, tools=[function], text_format=Capital, temperature=0
        )
        for said in (MESSAGES, IN_JSON)
    ]
    assert [output.type for response in found for output in response.output] == [
        "function_call",
        "message",
    ]
    assert [response.output_parsed for response in found] == [None, Capital(capital="Paris")]
    form = {"type": "json_schema", "schema": Capital.model_json_schema()}
    tool: Any = {"name": "get_weather", "description": DESCRIPTION, "input_schema": CITY}
    said = [
        claude.messages.create(
            model=MODEL,
            max_tokens=100,
            messages=messages,
            tools=[tool],
            extra_body={"temperature": 0, "output_config": {"format": form}},
        )
        for messages in (MESSAGES, IN_JSON)
    ]
    assert [each.stop_reason for each in said] == ["tool_use", "end_turn"]
    (call,), (text,) = (each.content for each in said)
    assert call.type == "tool_use"
    assert call.input == {"city": "Oslo"}
    assert text.type == "text"
    assert text.text == '{"capital": "Paris"}'


def test_a_response_calls_what_the_model_chose(client: openai.OpenAI, same: Same) -> None:
    function = {"type": "function", "name": "get_weather", "parameters": CITY, "strict": False}
    asked: dict[str, Any] = {"model": MODEL, "tools": [function], "temperature": 0}
    said: list[Any] = list(MESSAGES)
    first = client.responses.create(input=said, **asked)
    (call,) = first.output
    assert call.type == "function_call"
    assert (call.name, json.loads(call.arguments)) == ("get_weather", {"city": "Oslo"})
    said += [call.to_dict()]
    said += [{"type": "function_call_output", "call_id": call.call_id, "output": SKY}]
    assert client.responses.create(input=said, **asked).output_text == ANSWER
    same(call.arguments)


def test_anthropics_client_runs_an_agent(claude: anthropic.Anthropic) -> None:
    heard = []

    @anthropic.beta_tool(name="get_weather", description=DESCRIPTION, input_schema=CITY)
    def get_weather(city: str) -> str:
        heard.append(city)
        return SKY

    runner = claude.beta.messages.tool_runner(
        model=MODEL,
        max_tokens=200,
        messages=MESSAGES,
        tools=[get_weather],
        extra_body={"temperature": 0},
    )
    answers = list(runner)
    assert heard == ["Oslo"]
    assert [answer.stop_reason for answer in answers] == ["tool_use", "end_turn"]
    (text,) = answers[-1].content
    assert text.type == "text"
    assert text.text == ANSWER


def test_langchains_model_calls_bound_tools(chain: langchain_openai.ChatOpenAI) -> None:
    chat = chain.bind_tools([WEATHER])
    asked = chat.invoke(MESSAGES)
    (call,) = asked.tool_calls
    assert (call["name"], call["args"]) == ("get_weather", {"city": "Oslo"})
    pieces: Iterator[Any] = iter(chat.stream(MESSAGES))
    streamed = next(pieces)
    for piece in pieces:
        streamed += piece
    assert [each["args"] for each in streamed.tool_calls] == [{"city": "Oslo"}]
    result = {"role": "tool", "tool_call_id": call["id"], "content": SKY}
    assert chat.invoke([*MESSAGES, asked, result]).content == ANSWER


@pytest.mark.usefixtures("event_loop_of_thread")
def test_litellm_calls_tools(lite: dict[str, Any], asked: dict[str, Any]) -> None:
    asked |= {"messages": MESSAGES, **lite}
    message = litellm.completion(**asked).choices[0].message
    assert cities(message.tool_calls) == ["Oslo"]
    pieces = list(litellm.completion(stream=True, **asked))
    whole: Any = litellm.stream_chunk_builder(pieces)
    assert cities(whole.choices[0].message.tool_calls) == ["Oslo"]


def test_openais_client_for_node_runs_an_agent(served: Served, node: Callable[..., str]) -> None:
    found = json.loads(node("agent.mjs", served.mesh.url, QUESTION, SKY))
    assert found == {"heard": ["Oslo"], "whole": ANSWER, "streamed": ANSWER}


def test_the_example_of_the_documentation_prints_what_it_says(
    served: Served, capsys: pytest.CaptureFixture[str]
) -> None:
    text = DOCUMENT.read_text(encoding="utf-8")
    ((code, printed),) = re.findall(r"```python\n(.+?)```\n```text\n(.+?)```", text, re.DOTALL)
    names: dict[str, Any] = {}
    exec(code.replace("http://127.0.0.1:8000", served.mesh.url), names)
    names["client"].close()
    assert capsys.readouterr().out == printed
