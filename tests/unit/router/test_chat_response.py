"""Chat completions and their chunks, as OpenAI's own client reads them, with vLLM's fields besides."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from pagemesh.router.chat.delta import ChatDelta
from pagemesh.router.generation.request import StopReason, Usage
from pagemesh.router.openai.answer_options import AnswerOptions
from pagemesh.router.openai.chat_response import ChatResponder
from pagemesh.router.openai.logprobs import TokenNames
from pagemesh.router.parsers.interface import ToolCallDelta
from pagemesh.sampling.logprobs import TokenLogprobs
from tests.support.late_imports import openai

USAGE = Usage(num_prompt_tokens=2, num_completion_tokens=3, num_cached_tokens=0)
BEGUN = ToolCallDelta(0, "c0", "add", '{"a"')
REST = ToolCallDelta(0, None, None, ": 1}")
SECOND = ToolCallDelta(1, "c1", "sub", "{}")
WHOLE = ToolCallDelta(0, "c0", "add", '{"a": 1}')
ROLE = {"role": "assistant", "content": ""}


def responder(*, about: dict[str, Any] | None = None, **options: Any) -> ChatResponder:
    options.setdefault("tokens", TokenNames(lambda token_id: str(token_id).encode()))
    return ChatResponder("r1", 123, "demo", AnswerOptions(**options), **(about or {}))


def chunks(writer: ChatResponder, *deltas: ChatDelta) -> list[Any]:
    frames = b"".join(map(writer.events, deltas)).decode()
    lines = [line for line in frames.split("\n\n") if line]
    found = [json.loads(line.removeprefix("data: ")) for line in lines]
    for chunk in found:
        openai.types.chat.ChatCompletionChunk.model_validate(chunk, strict=True)
        assert (chunk["id"], chunk["created"], chunk["model"]) == ("chatcmpl-r1", 123, "demo")
    return found


def message(delta: ChatDelta) -> Any:
    ended = replace(delta, stop_reason=delta.stop_reason or StopReason.STOP)
    body = responder().whole([ended], USAGE)
    openai.types.chat.ChatCompletion.model_validate(body, strict=True)
    return body["choices"][0]["message"]


def test_calls_are_streamed_with_their_indexes() -> None:
    found = chunks(
        responder(),
        ChatDelta(0, content="So: "),
        ChatDelta(0, tool_calls=(BEGUN,)),
        ChatDelta(0, tool_calls=(REST, SECOND)),
        ChatDelta(0, stop_reason=StopReason.TOOL_CALLS),
    )
    begun = {"name": "add", "arguments": '{"a"'}
    assert [chunk["choices"][0]["delta"] for chunk in found] == [
        ROLE,
        {"content": "So: "},
        {"tool_calls": [{"index": 0, "id": "c0", "type": "function", "function": begun}]},
        {
            "tool_calls": [
                {"index": 0, "function": {"arguments": ": 1}"}},
                {
                    "index": 1,
                    "id": "c1",
                    "type": "function",
                    "function": {"name": "sub", "arguments": "{}"},
                },
            ]
        },
        {},
    ]
    assert found[-1]["choices"][0]["finish_reason"] == "tool_calls"


def test_a_whole_answer_with_calls_has_no_content() -> None:
    found = message(ChatDelta(0, tool_calls=(WHOLE,), stop_reason=StopReason.TOOL_CALLS))
    assert found["content"] is None
    assert found["tool_calls"] == [
        {"id": "c0", "type": "function", "function": {"name": "add", "arguments": '{"a": 1}'}}
    ]
    assert message(ChatDelta(0, "x", tool_calls=(WHOLE,)))["content"] == "x"


def test_an_answer_of_nothing_has_empty_content_and_no_calls() -> None:
    found = message(ChatDelta(0, stop_reason=StopReason.STOP))
    assert found["content"] == ""
    assert "tool_calls" not in found


def test_thoughts_have_both_of_their_names() -> None:
    found = message(ChatDelta(0, "yes", "hm"))
    assert (found["content"], found["reasoning"], found["reasoning_content"]) == ("yes", "hm", "hm")
    assert message(ChatDelta(0, reasoning="hm"))["content"] is None
    (_, chunk) = chunks(responder(), ChatDelta(0, reasoning="hm"))
    assert chunk["choices"][0]["delta"] == {"reasoning": "hm", "reasoning_content": "hm"}


@pytest.mark.parametrize(
    ("delta", "stop_reason"),
    [
        (ChatDelta(0, stop_reason=StopReason.STOP), None),
        (ChatDelta(0, stop_reason=StopReason.STOP, stop_string="END"), "END"),
        (ChatDelta(0, stop_reason=StopReason.STOP, stop_token_id=0), 0),
    ],
    ids=["by itself", "a string", "a token"],
)
def test_what_ended_an_answer_is_told_as_in_vllm(delta: ChatDelta, stop_reason: Any) -> None:
    assert responder().whole([delta], USAGE)["choices"][0]["stop_reason"] == stop_reason
    assert chunks(responder(), delta)[-1]["choices"][0]["stop_reason"] == stop_reason


def test_ids_are_told_once_also_those_whose_text_is_held_back() -> None:
    writer = responder(about={"prompt_token_ids": [7, 8]}, has_token_ids=True)
    found = chunks(
        writer,
        ChatDelta(0, "a", token_ids=(1,)),
        ChatDelta(0, token_ids=(2,)),
        ChatDelta(0, "b", token_ids=(3, 4), stop_reason=StopReason.STOP),
        ChatDelta(1, "c", token_ids=(5,)),
    )
    ids = [
        (chunk["choices"][0]["index"], each)
        for chunk in found
        for each in chunk["choices"][0].get("token_ids", ())
    ]
    assert ids == [(0, 1), (0, 2), (0, 3), (0, 4), (1, 5)]
    assert [chunk.get("prompt_token_ids") for chunk in found] == [[7, 8], *[None] * 6]
    whole = writer.whole([ChatDelta(0, "ab", token_ids=(1, 2))], USAGE)
    assert whole["prompt_token_ids"] == [7, 8]
    assert whole["choices"][0]["token_ids"] == (1, 2)


def test_the_prompts_text_is_told_in_the_first_chunk() -> None:
    writer = responder(about={"prompt_text": "hi"})
    assert writer.whole([ChatDelta(0, "a")], USAGE)["prompt_text"] == "hi"
    found = chunks(writer, ChatDelta(0, "a"), ChatDelta(1, "b"))
    assert [chunk.get("prompt_text") for chunk in found] == ["hi", None, None, None]


def test_every_chunk_may_have_the_counts_so_far() -> None:
    writer = responder(
        about={"prompt_token_ids": [7, 8]}, include_usage=True, has_continuous_usage=True
    )
    found = chunks(
        writer,
        ChatDelta(0, "a", token_ids=(1,)),
        ChatDelta(0, "b", token_ids=(2, 3), stop_reason=StopReason.STOP),
    )
    assert [chunk["usage"]["completion_tokens"] for chunk in found] == [0, 1, 3, 3]
    assert {chunk["usage"]["prompt_tokens"] for chunk in found} == {2}
    assert found[-1]["usage"]["total_tokens"] == 5


def test_an_echo_stands_in_front_of_each_choice() -> None:
    writer = responder(about={"echo": "The "})
    assert (
        writer.whole([ChatDelta(0, "end")], USAGE)["choices"][0]["message"]["content"] == "The end"
    )
    found = chunks(writer, ChatDelta(0, "end"), ChatDelta(0, "."))
    assert [chunk["choices"][0]["delta"]["content"] for chunk in found] == ["", "The ", "end", "."]


def test_a_call_that_had_to_come_stands_beside_an_empty_content() -> None:
    deltas = [ChatDelta(0, tool_calls=(WHOLE,), stop_reason=StopReason.STOP)]
    for about, content in (({}, None), ({"must_call": True}, "")):
        (choice,) = responder(about=about).whole(deltas, USAGE)["choices"]
        assert choice["message"]["content"] == content


def test_scores_of_calls_are_not_told() -> None:
    score, other = TokenLogprobs(5, -1.0, 1, (), ()), TokenLogprobs(6, -1.0, 1, (), ())
    _, content, call = chunks(
        responder(has_logprobs=True),
        ChatDelta(0, "a", logprobs=(score, other), content_logprobs=(score,)),
        ChatDelta(0, tool_calls=(BEGUN,), logprobs=(score,)),
    )
    told = content["choices"][0]["logprobs"]["content"]
    assert [each["token"] for each in told] == ["5"]
    assert call["choices"][0]["logprobs"] is None


@pytest.mark.parametrize("text", ['a"b\\c', "\n\u2028\x00", "é🚀", "\ue000", "plain"])
def test_plain_chunks_are_what_a_json_library_would_write(text: str) -> None:
    plain = chunks(responder(), ChatDelta(12, text))[1]
    full = chunks(responder(has_token_ids=True), ChatDelta(12, text))[1]
    del full["choices"][0]["token_ids"]
    assert plain == full
    assert plain["choices"][0]["delta"] == {"content": text}
