"""The Responses API and Anthropic's Messages with their real clients."""

from __future__ import annotations

import json
from typing import Any, Literal

import pydantic
import pytest

from tests.conformance.conftest import Same
from tests.mesh.harness import MODEL
from tests.support.late_imports import anthropic, openai

QUESTION = "What is the capital of France?"
MESSAGES: list[Any] = [{"role": "user", "content": QUESTION}]

# This client knows no field for it.
GREEDY = {"temperature": 0}


def test_a_response_is_given_at_once_and_as_events(client: openai.OpenAI, same: Same) -> None:
    asked: dict[str, Any] = {"model": MODEL, "input": QUESTION, "temperature": 0}
    response = client.responses.create(**asked)
    assert (response.status, response.model) == ("completed", MODEL)
    assert "Paris" in response.output_text
    assert response.usage is not None
    assert response.usage.total_tokens == response.usage.input_tokens + response.usage.output_tokens

    events = list(client.responses.create(stream=True, **asked))
    assert [event.sequence_number for event in events] == list(range(len(events)))
    deltas = [event.delta for event in events if event.type == "response.output_text.delta"]
    assert "".join(deltas) == response.output_text

    with client.responses.stream(**asked) as stream:
        for _ in stream:
            pass
        final = stream.get_final_response()
    assert final.output_text == response.output_text
    same(response.output_text)


def test_a_response_goes_on_where_the_last_one_ended(client: openai.OpenAI) -> None:
    said: list[Any] = [{"role": "user", "content": QUESTION}]
    first = client.responses.create(model=MODEL, input=said, temperature=0)
    # An answer's items come back as they are.
    said += [item.to_dict() for item in first.output] + said[:1]
    second = client.responses.create(model=MODEL, input=said, temperature=0)
    assert second.status == "completed"
    messages = [MESSAGES[0], {"role": "assistant", "content": first.output_text}, MESSAGES[0]]
    chat = client.chat.completions.create(model=MODEL, messages=messages, max_tokens=1)
    assert second.usage is not None
    assert chat.usage is not None
    assert second.usage.input_tokens == chat.usage.prompt_tokens


class City(pydantic.BaseModel):
    """What the model has to write."""

    name: Literal["Paris", "London"]
    is_capital: bool


def test_a_response_is_parsed_by_its_schema(client: openai.OpenAI, same: Same) -> None:
    response = client.responses.parse(
        model=MODEL, input=QUESTION, text_format=City, max_output_tokens=200, temperature=0
    )
    assert isinstance(response.output_parsed, City)
    same(response.output_text)


def test_a_response_that_is_cut_off_is_incomplete(client: openai.OpenAI) -> None:
    response = client.responses.create(model=MODEL, input=QUESTION, max_output_tokens=2)
    assert response.status == "incomplete"
    assert response.incomplete_details is not None
    assert response.incomplete_details.reason == "max_output_tokens"


def test_stored_responses_are_refused_clearly(client: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError, match="does not store responses"):
        client.responses.create(model=MODEL, input=QUESTION, store=True)
    for ask in (client.responses.retrieve, client.responses.cancel, client.responses.delete):
        with pytest.raises(openai.NotFoundError, match="does not store responses"):
            ask("resp_1")
    with pytest.raises(openai.NotFoundError, match="does not store responses"):
        client.responses.input_items.list("resp_1")


def test_a_message_is_given_at_once_and_as_events(claude: anthropic.Anthropic, same: Same) -> None:
    asked: dict[str, Any] = {"model": MODEL, "messages": MESSAGES, "max_tokens": 60}
    asked["extra_body"] = GREEDY
    message = claude.messages.create(**asked)
    assert (message.stop_reason, message.model, message.role) == ("end_turn", MODEL, "assistant")
    (block,) = message.content
    assert block.type == "text"
    assert "Paris" in block.text
    assert message._request_id

    with claude.messages.stream(**asked) as stream:
        assert "".join(stream.text_stream) == block.text
        final = stream.get_final_message()
    assert (final.content[0].to_dict()["text"], final.stop_reason) == (block.text, "end_turn")
    assert final.usage.output_tokens == message.usage.output_tokens
    same(block.text, message.usage.output_tokens)
    cached = final.usage.cache_read_input_tokens or 0
    assert final.usage.input_tokens + cached == message.usage.input_tokens + (
        message.usage.cache_read_input_tokens or 0
    )


def test_the_tokens_of_a_message_are_counted(claude: anthropic.Anthropic) -> None:
    count = claude.messages.count_tokens(model=MODEL, messages=MESSAGES, system="Be brief.")
    message = claude.messages.create(
        model=MODEL, messages=MESSAGES, system="Be brief.", max_tokens=1
    )
    cached = message.usage.cache_read_input_tokens or 0
    assert count.input_tokens == message.usage.input_tokens + cached


def test_a_message_ends_at_a_stop_sequence(claude: anthropic.Anthropic) -> None:
    message = claude.messages.create(
        model=MODEL,
        messages=MESSAGES,
        max_tokens=60,
        extra_body=GREEDY,
        stop_sequences=["zzz", "Par"],
    )
    assert (message.stop_reason, message.stop_sequence) == ("stop_sequence", "Par")


def test_a_message_begun_by_the_client_is_gone_on_with(claude: anthropic.Anthropic) -> None:
    messages = [*MESSAGES, {"role": "assistant", "content": "The capital of France is"}]
    message = claude.messages.create(
        model=MODEL, messages=messages, max_tokens=60, extra_body=GREEDY
    )
    (block,) = message.content
    assert block.type == "text"
    assert "Paris" in block.text
    assert "The capital" not in block.text


def test_errors_are_raised_as_anthropics(claude: anthropic.Anthropic) -> None:
    with pytest.raises(anthropic.NotFoundError) as missing:
        claude.messages.create(model="other", messages=MESSAGES, max_tokens=1)
    assert missing.value.body == {
        "type": "error",
        "error": {
            "type": "not_found_error",
            "message": "the model 'other' does not exist; this mesh serves 'demo'",
        },
        "request_id": missing.value.request_id,
    }
    with pytest.raises(anthropic.BadRequestError, match="image"):
        image: Any = {"type": "image", "source": {"type": "url", "url": "http://x/y.png"}}
        claude.messages.create(
            model=MODEL, messages=[{"role": "user", "content": [image]}], max_tokens=1
        )


def test_the_same_is_drawn_in_every_mode(
    client: openai.OpenAI, claude: anthropic.Anthropic, same: Same
) -> None:
    # Enough tokens that no two draws give the same.
    drawn = {"temperature": 1.8, "ignore_eos": True, "seed": 3}
    response = client.responses.create(
        model=MODEL, input=QUESTION, max_output_tokens=40, extra_body=drawn
    )
    message = claude.messages.create(
        model=MODEL, messages=MESSAGES, max_tokens=40, extra_body=drawn
    )
    same(response.output_text, [block.to_dict() for block in message.content])


CITIES = {"type": "object", "properties": {"city": {"enum": ["Paris", "London"]}}}
SCHEMA = {**CITIES, "required": ["city"], "additionalProperties": False}


def test_a_response_calls_a_function_and_reads_what_it_gave(
    client: openai.OpenAI, same: Same
) -> None:
    tool: Any = {"type": "function", "name": "get_weather", "parameters": SCHEMA, "strict": True}
    said: list[Any] = [{"role": "user", "content": QUESTION}]
    asked: dict[str, Any] = {"model": MODEL, "input": said, "tools": [tool], "temperature": 0}
    first = client.responses.create(tool_choice="required", parallel_tool_calls=False, **asked)
    (call,) = first.output
    assert call.type == "function_call"
    assert (call.name, first.status) == ("get_weather", "completed")
    assert json.loads(call.arguments)["city"] in ("Paris", "London")

    with client.responses.stream(
        tool_choice={"type": "function", "name": "get_weather"}, **asked
    ) as stream:
        pieces = [e.delta for e in stream if e.type == "response.function_call_arguments.delta"]
        final = stream.get_final_response()
    assert final.output[0].type == "function_call"
    assert "".join(pieces) == final.output[0].arguments == call.arguments

    said += [call.to_dict()]
    said += [{"type": "function_call_output", "call_id": call.call_id, "output": "It rains."}]
    second = client.responses.create(**asked)
    assert second.status == "completed"
    same(call.arguments, second.output_text)


def test_a_message_uses_a_tool_and_reads_its_result(
    claude: anthropic.Anthropic, same: Same
) -> None:
    tool: Any = {"name": "get_weather", "description": "Weather.", "input_schema": SCHEMA}
    asked: dict[str, Any] = {"model": MODEL, "max_tokens": 400, "tools": [tool]}
    asked["extra_body"] = GREEDY
    any_tool: Any = {"type": "any", "disable_parallel_tool_use": True}
    first = claude.messages.create(messages=MESSAGES, tool_choice=any_tool, **asked)
    (block,) = first.content
    assert block.type == "tool_use"
    assert (block.name, first.stop_reason) == ("get_weather", "tool_use")
    assert block.input["city"] in ("Paris", "London")

    with claude.messages.stream(messages=MESSAGES, tool_choice=any_tool, **asked) as stream:
        final = stream.get_final_message()
    (streamed,) = final.content
    assert streamed.type == "tool_use"
    assert (streamed.input, final.stop_reason) == (block.input, "tool_use")

    result = {"type": "tool_result", "tool_use_id": block.id, "content": "It rains."}
    messages = [
        *MESSAGES,
        {"role": "assistant", "content": first.content},
        {"role": "user", "content": [result]},
    ]
    second = claude.messages.create(messages=messages, **asked)
    assert second.usage.input_tokens + (second.usage.cache_read_input_tokens or 0) > 0
    assert second.stop_reason in ("end_turn", "tool_use", "max_tokens")
    same(block.input, second.stop_reason, second.usage.output_tokens)


def test_a_thread_of_messages_goes_on_though_nobody_keeps_it(
    claude: anthropic.Anthropic, same: Same
) -> None:
    thread = claude.beta.messages.thread(model=MODEL, max_tokens=40, extra_body=GREEDY)
    for text in ("My name is Anna.", "What is my name?"):
        message = thread.send({"role": "user", "content": text})
    (block,) = message.content
    assert block.type == "text"
    assert "Anna" in block.text
    same(block.text)
