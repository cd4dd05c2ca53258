"""Thoughts reach every client apart from the answer; a grammar makes any weights think aloud."""

from __future__ import annotations

import re
from typing import Any

import pytest

from tests.conformance.conftest import Same
from tests.mesh.harness import MODEL, Mesh
from tests.support.late_imports import anthropic, litellm, openai

QUESTION = "What is the capital of France?"
MESSAGES: list[Any] = [{"role": "user", "content": QUESTION}]
THOUGHTS, ANSWER = r"[A-Z][a-z ]{4,20}\.", r"[A-Z][a-z]{2,8}\."
THINKING = {"structured_outputs": {"regex": f"<think>{THOUGHTS}</think>{ANSWER}"}}
"""The parser is the one that is found in the demo model's chat template."""


def test_openais_chats_tell_thoughts_apart(client: openai.OpenAI, same: Same) -> None:
    asked: dict[str, Any] = {"model": MODEL, "messages": MESSAGES, "temperature": 0}
    told = client.chat.completions.create(extra_body=THINKING, **asked).choices[0].message
    message = told.model_dump()
    assert re.fullmatch(THOUGHTS, message["reasoning_content"])
    assert re.fullmatch(ANSWER, message["content"])
    assert message["reasoning"] == message["reasoning_content"]
    stream = client.chat.completions.create(extra_body=THINKING, stream=True, **asked)
    deltas = [chunk.choices[0].delta.model_dump() for chunk in stream]
    thoughts = [delta.get("reasoning_content") or "" for delta in deltas]
    texts = [delta.get("content") or "" for delta in deltas]
    assert "".join(thoughts) == message["reasoning_content"]
    assert "".join(texts) == message["content"]
    answer_begins = next(i for i, text in enumerate(texts) if text)
    assert not any(thoughts[answer_begins + 1 :])
    same(message["reasoning_content"], message["content"])


def test_thoughts_are_left_out_when_nobody_asks_for_them(client: openai.OpenAI) -> None:
    body = THINKING | {"include_reasoning": False}
    answer = client.chat.completions.create(
        model=MODEL, messages=MESSAGES, temperature=0, extra_body=body
    )
    message = answer.choices[0].message.model_dump()
    assert not message.get("reasoning_content")
    assert re.fullmatch(ANSWER, message["content"])


def test_thoughts_of_a_response_are_an_item_of_their_own(client: openai.OpenAI, same: Same) -> None:
    asked: dict[str, Any] = {"model": MODEL, "input": QUESTION, "temperature": 0}
    response = client.responses.create(extra_body=THINKING, **asked)
    thoughts, message = response.output
    assert thoughts.type == "reasoning"
    assert thoughts.content is not None
    (text,) = thoughts.content
    assert re.fullmatch(THOUGHTS, text.text)
    assert message.type == "message"
    assert re.fullmatch(ANSWER, response.output_text)
    events = list(client.responses.create(extra_body=THINKING, stream=True, **asked))
    pieces = [event.delta for event in events if event.type == "response.reasoning_text.delta"]
    assert "".join(pieces) == text.text
    said = [*MESSAGES, *(item.to_dict() for item in response.output), *MESSAGES]
    again = client.responses.create(model=MODEL, input=said, temperature=0, max_output_tokens=4)
    assert again.usage is not None and response.usage is not None
    assert again.usage.input_tokens > response.usage.input_tokens
    same(text.text, response.output_text)


def test_thoughts_of_a_message_are_a_block_of_their_own(
    claude: anthropic.Anthropic, same: Same
) -> None:
    asked: dict[str, Any] = {"model": MODEL, "messages": MESSAGES, "max_tokens": 60}
    asked["extra_body"] = THINKING | {"temperature": 0}
    thoughts, text = claude.messages.create(**asked).content
    assert thoughts.type == "thinking"
    assert re.fullmatch(THOUGHTS, thoughts.thinking)
    assert text.type == "text"
    assert re.fullmatch(ANSWER, text.text)
    with claude.messages.stream(**asked) as stream:
        events = list(stream)
        final = stream.get_final_message()
    pieces = [event.thinking for event in events if event.type == "thinking"]
    assert "".join(pieces) == thoughts.thinking
    assert [block.type for block in final.content] == ["thinking", "text"]
    same(thoughts.thinking, text.text)


@pytest.mark.usefixtures("event_loop_of_thread")
def test_litellm_reads_thoughts(mesh: Mesh, same: Same) -> None:
    answer = litellm.completion(
        model=f"openai/{MODEL}",
        api_base=f"{mesh.url}/v1",
        api_key="none",
        num_retries=0,
        messages=MESSAGES,
        temperature=0,
        extra_body=THINKING,
    )
    message = answer.choices[0].message
    assert re.fullmatch(THOUGHTS, message.reasoning_content)
    assert re.fullmatch(ANSWER, message.content)
    same(message.reasoning_content, message.content)
