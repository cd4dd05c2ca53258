from __future__ import annotations

import json
from typing import Any

from pagemesh.router.chat.answer import ChatAnswer
from pagemesh.router.chat.choice_reader import ChoiceReader
from pagemesh.router.generation.request import ChoiceDelta, StopReason, Usage
from pagemesh.router.openai.answer_options import AnswerOptions
from pagemesh.router.openai.chat_response import ChatResponder
from pagemesh.router.openai.completion_response import CompletionResponder
from pagemesh.router.openai.logprobs import TokenNames
from pagemesh.router.openai.responses import CollectedChoice
from pagemesh.router.openai.sse import DONE, data_frame
from pagemesh.router.parsers.factory import PlainParser
from tests.support.late_imports import openai

USAGE = Usage(num_prompt_tokens=5, num_completion_tokens=3, num_cached_tokens=4)
NAMES = TokenNames(lambda token_id: str(token_id).encode())


def answer(*args: Any, **kwargs: Any) -> ChatAnswer:
    """Of up to two choices, whose text is all content."""
    return ChatAnswer(
        ChatResponder(*args, **kwargs), [ChoiceReader(PlainParser()) for _ in range(2)]
    )


def chat(*, include_usage: bool = False) -> ChatAnswer:
    return answer("r1", 123, "demo", AnswerOptions(NAMES, include_usage=include_usage))


def completion(*, include_usage: bool = False) -> CompletionResponder:
    return CompletionResponder("r1", 123, "demo", AnswerOptions(NAMES, include_usage=include_usage))


def payloads(frames: bytes) -> list[Any]:
    assert frames == b"" or frames.endswith(b"\n\n")
    lines = [line for line in frames.decode().split("\n\n") if line]
    assert all(line.startswith("data: ") for line in lines)
    return [json.loads(line.removeprefix("data: ")) for line in lines]


def delta(text: str, *, index: int = 0, stop: StopReason | None = None) -> ChoiceDelta:
    return ChoiceDelta(index, text, (7,), stop)


def test_a_frame_is_one_line_whatever_the_text() -> None:
    frame = data_frame({"text": "a\n\nb\r🚀\u2028"})
    assert frame.count(b"\n") == 2
    assert "🚀".encode() in frame
    assert json.loads(frame[6:]) == {"text": "a\n\nb\r🚀\u2028"}


def test_a_whole_chat_answer() -> None:
    body = chat().whole([CollectedChoice(["He", "llo"], StopReason.STOP)], USAGE)
    parsed = openai.types.chat.ChatCompletion.model_validate(body, strict=True)
    assert parsed.id == "chatcmpl-r1"
    assert parsed.choices[0].message.content == "Hello"
    assert parsed.choices[0].finish_reason == "stop"
    assert body["usage"] == {
        "prompt_tokens": 5,
        "completion_tokens": 3,
        "total_tokens": 8,
        "prompt_tokens_details": {"cached_tokens": 4},
    }


def test_chat_chunks_begin_with_the_role_and_end_with_the_reason() -> None:
    responder = chat()
    frames = responder.events(delta("Hi")) + responder.events(delta("", stop=StopReason.LENGTH))
    chunks = payloads(frames)
    for chunk in chunks:
        openai.types.chat.ChatCompletionChunk.model_validate(chunk, strict=True)
        assert "usage" not in chunk
    choices = [chunk["choices"][0] for chunk in chunks]
    assert [choice["delta"] for choice in choices] == [
        {"role": "assistant", "content": ""},
        {"content": "Hi"},
        {},
    ]
    assert [choice["finish_reason"] for choice in choices] == [None, None, "length"]


def test_every_choice_has_a_role_of_its_own() -> None:
    responder = chat()
    chunks = payloads(responder.events(delta("a", index=1)) + responder.events(delta("b")))
    assert [(c["choices"][0]["index"], c["choices"][0]["delta"]) for c in chunks] == [
        (1, {"role": "assistant", "content": ""}),
        (1, {"content": "a"}),
        (0, {"role": "assistant", "content": ""}),
        (0, {"content": "b"}),
    ]


def test_a_delta_without_text_has_no_frame() -> None:
    responder = chat()
    responder.events(delta("a"))
    assert responder.events(delta("")) == b""
    assert completion().events(delta("")) == b""


def test_a_stream_with_usage_has_the_field_in_every_chunk() -> None:
    for responder in (chat(include_usage=True), completion(include_usage=True)):
        assert {c["usage"] for c in payloads(responder.events(delta("a")))} == {None}
        end = responder.end(USAGE)
        assert end.endswith(DONE)
        (last,) = payloads(end.removesuffix(DONE))
        assert last["choices"] == []
        assert last["usage"]["total_tokens"] == 8


def test_a_whole_completion() -> None:
    choices = [
        CollectedChoice(["He", "llo"], StopReason.STOP),
        CollectedChoice(["Ho"], StopReason.LENGTH),
    ]
    body = completion().whole(choices, USAGE)
    parsed = openai.types.Completion.model_validate(body, strict=True)
    assert parsed.id == "cmpl-r1"
    assert [choice.text for choice in parsed.choices] == ["Hello", "Ho"]
    assert [choice.finish_reason for choice in parsed.choices] == ["stop", "length"]


def test_completion_chunks_carry_text_and_reason_together() -> None:
    (chunk,) = payloads(completion().events(delta("a", stop=StopReason.STOP)))
    assert chunk["object"] == "text_completion"
    assert chunk["choices"] == [
        {
            "index": 0,
            "text": "a",
            "logprobs": None,
            "finish_reason": "stop",
            "stop_reason": None,
        }
    ]
