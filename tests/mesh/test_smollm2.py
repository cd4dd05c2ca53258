"""A mesh that serves a real model by its short name: what clients get is what transformers makes of the same file."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

import jsonschema
import pytest

from tests.mesh.harness import Mesh, running_mesh
from tests.support.smollm2 import CHATS, Chat, smollm2_installed

# The file may have to be fetched first.
pytestmark = pytest.mark.timeout(600)

NAME: Final = "smollm2"
REMOTE_FROM: Final = 45
"""Tokens; two of the prompts have more, and two fewer."""
ARGUMENTS: Final = {
    "type": "object",
    "properties": {
        "city": {"type": "string", "maxLength": 20},
        "days": {"type": "integer", "minimum": 1, "maximum": 7},
        "unit": {"enum": ["celsius", "fahrenheit"]},
    },
    "required": ["city", "days", "unit"],
    "additionalProperties": False,
}
WEATHER: Final = {
    "type": "function",
    "function": {"name": "get_weather", "description": "Forecasts.", "parameters": ARGUMENTS},
}


@pytest.fixture(scope="module")
def mesh(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mesh]:
    """In float32, in which transformers' sums are no matter of luck."""
    arguments = ["--model", NAME, "--dtype", "float32", "--max-model-len", "512", "--no-sample"]
    arguments += ["--kv-cache-memory", "0.5", "--remote-prefill-min-tokens", str(REMOTE_FROM)]
    # On busy cores, an answer of the index may take longer than a router would wait for it.
    arguments += ["--lookup-timeout", "5"]
    folder = tmp_path_factory.mktemp("smollm2")
    with smollm2_installed(), running_mesh(folder, *arguments) as running:
        running.wait_until_complete()
        yield running


def test_templates_and_tokens_on_every_path_are_those_of_transformers(mesh: Mesh) -> None:
    assert [model.id for model in mesh.client().models.list()] == [NAME]
    before = num_remote_prefills(mesh)
    answers = ask_all(mesh)
    num_remote = num_remote_prefills(mesh) - before
    again = ask_all(mesh)
    for chat, *each in zip(CHATS, answers, again, strict=True):
        assert [answer["choices"][0]["token_ids"] for answer in each] == [chat.token_ids] * 2
        detokenized = {"model": NAME, "tokens": each[0]["prompt_token_ids"]}
        prompt = mesh.http.post(f"{mesh.url}/detokenize", json=detokenized).json()["prompt"]
        assert prompt == chat.prompt
    lengths = [answer["usage"]["prompt_tokens"] for answer in answers]
    assert num_remote == sum(length >= REMOTE_FROM for length in lengths) == 2
    assert [num_cached(answer) for answer in answers] == [0] * len(CHATS)
    assert all(num_cached(answer) >= 32 for answer in again)


@pytest.mark.parametrize(
    "choice",
    ["required", {"type": "function", "function": {"name": "get_weather"}}],
    ids=["required", "named"],
)
def test_a_forced_call_has_arguments_of_its_schema(mesh: Mesh, choice: Any) -> None:
    """Of a model that was never taught to call, and is told by no template of its tools."""
    asked: Any = {"messages": CHATS[0].messages, "tools": [WEATHER], "tool_choice": choice}
    answer = mesh.client().chat.completions.create(
        model=NAME, temperature=0, max_tokens=64, **asked
    )
    message: Any = answer.choices[0].message
    (call,) = message.tool_calls
    assert call.function.name == "get_weather"
    jsonschema.validate(json.loads(call.function.arguments), ARGUMENTS)


def num_remote_prefills(mesh: Mesh) -> float:
    return mesh.metric("decode-0", "pagemesh:remote_prefills_total", outcome="complete")


def num_cached(answer: Mapping[str, Any]) -> int:
    """Tokens of the prompt whose KV was there."""
    return int(answer["usage"]["prompt_tokens_details"]["cached_tokens"])


def ask_all(mesh: Mesh) -> list[Mapping[str, Any]]:
    """The greedy answers of a batch, with their token ids and the prompts'."""
    with ThreadPoolExecutor(len(CHATS)) as pool:
        return list(pool.map(lambda number: ask(mesh, CHATS[number], number), range(len(CHATS))))


def ask(mesh: Mesh, chat: Chat, number: int) -> Mapping[str, Any]:
    body = {
        "model": NAME,
        "messages": chat.messages,
        "temperature": 0,
        "max_tokens": len(chat.token_ids),
        "ignore_eos": True,
        "return_token_ids": True,
        # What prompts have in common would make some too short to be prefilled remotely.
        "cache_salt": str(number),
    }
    found = mesh.http.post(f"{mesh.url}/v1/chat/completions", json=body, timeout=60)
    assert found.status_code == 200, found.text
    answer: Mapping[str, Any] = found.json()
    return answer
