"""LiteLLM's proxy in front of a mesh, and OpenAI's client in front of the proxy."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.ecosystem.conftest import DEADLINE_S, QUIET
from tests.ecosystem.environments import programs_of
from tests.ecosystem.questions import ANSWER, PLACE, QUESTION, TEXTS, WIDTH
from tests.mesh.harness import Mesh, can_connect, until
from tests.support.late_imports import openai
from tests.support.ports import free_port

pytestmark = [pytest.mark.exhaustive, pytest.mark.timeout(1500)]

KEY = "sk-of-the-proxy"
MESSAGES: list[Any] = [{"role": "user", "content": QUESTION}]
WEATHER: Any = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "The weather in a city.",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string"}},
            "required": ["city"],
            "additionalProperties": False,
        },
    },
}


@pytest.fixture(scope="module")
def proxy(mesh: Mesh, tmp_path_factory: pytest.TempPathFactory) -> Iterator[openai.OpenAI]:
    """A client of a proxy that sends what is asked of `mesh` and `elsewhere` to a mesh."""
    folder: Path = tmp_path_factory.mktemp("litellm")
    upstream = {"api_base": f"{mesh.url}/v1", "api_key": "none"}
    models = {"mesh": "demo", "elsewhere": "nope"}
    listed = [
        {"model_name": name, "litellm_params": upstream | {"model": f"openai/{model}"}}
        for name, model in models.items()
    ]
    settings = {
        "model_list": listed,
        "litellm_settings": {"num_retries": 0},
        "general_settings": {"master_key": KEY},
    }
    (folder / "config.yaml").write_text(yaml.safe_dump(settings), encoding="utf-8")
    port = free_port()
    command = [str(programs_of("litellm-proxy") / "litellm"), "--config", "config.yaml"]
    command += ["--host", "127.0.0.1", "--port", str(port), "--telemetry", "False"]
    with (folder / "output.txt").open("w+") as output:
        process = subprocess.Popen(
            command,
            cwd=folder,
            env=os.environ | QUIET,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            until(
                lambda: process.poll() is not None or can_connect(f"127.0.0.1:{port}"),
                "the proxy listens",
                DEADLINE_S,
            )
            assert process.poll() is None, (folder / "output.txt").read_text()
            address = f"http://127.0.0.1:{port}/v1"
            with openai.OpenAI(
                base_url=address, api_key=KEY, max_retries=0, timeout=DEADLINE_S
            ) as it:
                yield it
        finally:
            process.terminate()
            try:
                process.wait(30)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait(10)


def test_chats_come_whole_and_in_pieces(proxy: openai.OpenAI) -> None:
    asked: dict[str, Any] = {"model": "mesh", "messages": MESSAGES, "temperature": 0}
    answer = proxy.chat.completions.create(**asked)
    assert answer.choices[0].message.content == ANSWER
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens) == (18, 8)
    pieces = list(
        proxy.chat.completions.create(**asked, stream=True, stream_options={"include_usage": True})
    )
    text = "".join(piece.choices[0].delta.content or "" for piece in pieces if piece.choices)
    assert text == ANSWER
    assert [piece.usage.completion_tokens for piece in pieces if piece.usage] == [8]


def test_completions_come_with_their_log_probabilities(proxy: openai.OpenAI) -> None:
    prompt = "The capital of France is"
    answer = proxy.completions.create(
        model="mesh", prompt=prompt, max_tokens=2, temperature=0, logprobs=1
    )
    assert answer.choices[0].text == " Paris."
    assert answer.choices[0].logprobs is not None
    assert answer.choices[0].logprobs.tokens == [" Paris", "."]


@pytest.mark.parametrize("stream", [False, True])
def test_tools_are_called(proxy: openai.OpenAI, stream: bool) -> None:
    asked: dict[str, Any] = {"model": "mesh", "temperature": 0, "tools": [WEATHER]}
    asked["messages"] = [{"role": "user", "content": PLACE}]
    if stream:
        with proxy.chat.completions.stream(**asked) as pieces:
            message = pieces.get_final_completion().choices[0].message
    else:
        message = proxy.chat.completions.create(**asked).choices[0].message
    (call,) = message.tool_calls or []
    assert call.type == "function"
    assert call.function.name == "get_weather"
    assert json.loads(call.function.arguments) == {"city": "Oslo"}


def test_answers_keep_to_a_schema(proxy: openai.OpenAI) -> None:
    schema = {
        "type": "object",
        "properties": {"city": {"enum": ["Paris", "Rome"]}},
        "required": ["city"],
        "additionalProperties": False,
    }
    form: Any = {"type": "json_schema"}
    form["json_schema"] = {"name": "answer", "strict": True, "schema": schema}
    answer = proxy.chat.completions.create(
        model="mesh", messages=MESSAGES, temperature=0, response_format=form
    )
    assert json.loads(answer.choices[0].message.content or "") == {"city": "Paris"}


def test_texts_are_embedded(proxy: openai.OpenAI) -> None:
    answer = proxy.embeddings.create(model="mesh", input=list(TEXTS))
    assert [len(each.embedding) for each in answer.data] == [WIDTH] * len(TEXTS)


def test_errors_pass_through_with_their_status(proxy: openai.OpenAI) -> None:
    with pytest.raises(openai.NotFoundError, match="'nope'"):
        proxy.chat.completions.create(model="elsewhere", messages=MESSAGES)
    with pytest.raises(openai.BadRequestError, match="top_p"):
        proxy.chat.completions.create(model="mesh", messages=MESSAGES, top_p=7)
    long: list[Any] = [{"role": "user", "content": "word " * 5000}]
    with pytest.raises(openai.BadRequestError, match="ContextWindowExceededError"):
        proxy.chat.completions.create(model="mesh", messages=long)
