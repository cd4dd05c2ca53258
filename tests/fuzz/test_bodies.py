"""Bodies that nobody would write: every one is answered in words, and nothing stays behind."""

from __future__ import annotations

import copy
import json
import random
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from tests.fuzz.conftest import FACTOR, check_nothing_is_left
from tests.mesh.harness import Mesh

pytestmark = pytest.mark.costly

MESSAGES = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "hello"}]
SCHEMA = {"type": "object", "properties": {"city": {"enum": ["Paris"]}}, "required": ["city"]}
FUNCTION = {"name": "get_weather", "description": "Tells it.", "parameters": SCHEMA}
CHAT = {
    "model": "demo",
    "messages": [*MESSAGES, {"role": "user", "content": [{"type": "text", "text": "more"}]}],
    "max_tokens": 3,
    "n": 2,
    "stop": ["x", "yy"],
    "temperature": 0.5,
    "seed": 7,
    "logit_bias": {"20": 3},
    "logprobs": True,
    "top_logprobs": 2,
    "tools": [{"type": "function", "function": FUNCTION}],
    "tool_choice": "auto",
    "chat_template_kwargs": {"enable_thinking": False},
    "stream": False,
}
BODIES: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": CHAT,
    "/v1/completions": {
        "model": "demo",
        "prompt": ["hi", "ho"],
        "max_tokens": 3,
        "echo": True,
        "logprobs": 1,
        "best_of": 2,
        "bad_words": ["no"],
        "structured_outputs": {"regex": "[a-z]+"},
    },
    "/v1/responses": {
        "model": "demo",
        "input": [{"role": "user", "content": [{"type": "input_text", "text": "hi"}]}],
        "instructions": "Be short.",
        "max_output_tokens": 16,
        "tools": [{"type": "function", **FUNCTION}],
        "text": {"format": {"type": "text"}},
        "reasoning": {"effort": "low"},
    },
    "/v1/messages": {
        "model": "demo",
        "system": "Be short.",
        "messages": MESSAGES[:1],
        "max_tokens": 3,
        "stop_sequences": ["x"],
        "tools": [{"name": "get_weather", "input_schema": SCHEMA}],
        "tool_choice": {"type": "auto"},
        "metadata": {"user_id": "me"},
    },
    "/v1/messages/count_tokens": {"model": "demo", "messages": MESSAGES},
    "/v1/embeddings": {"model": "demo", "input": ["hi", "ho"], "encoding_format": "float"},
    "/v1/score": {"model": "demo", "text_1": "a", "text_2": ["b", "c"]},
    "/v1/rerank": {"model": "demo", "query": "a", "documents": ["b", "c"], "top_n": 1},
    "/tokenize": {"model": "demo", "messages": MESSAGES, "add_generation_prompt": True},
    "/detokenize": {"model": "demo", "tokens": [20, 21]},
}
"""A valid one for each route."""

ODD: tuple[Any, ...] = (
    *(None, True, False, 0, 1, -1, 2**31, 2**63, 2**64, -(2**63) - 1, 10**40, 1e308, -0.0, 0.5),
    *("", " ", "a", "\ud800", "\x00", "\u2028", "é" * 3, "x" * 5000, "{{ messages }}", "<think>"),
    *([], [[]], [None], [1], ["a"], [{}], ["\ud800"], [1, "a"], list(range(300)), {}),
    *({"": ""}, {"a": {"b": [1]}}, {"type": "text"}, {"type": "nobody"}, {"\ud800": 1}, "auto"),
)

RAW = (
    *(b"", b"null", b"1", b'"a"', b"[]", b"{", b'{"model": "demo"', b"\xff\xfe", b"{} {}"),
    *(b'{"n": NaN}', b'{"n": Infinity}', b'{"a": 1, "a": 2}', b"[" * 100_000, b'{"a":' * 50_000),
    *(b'{"model": "demo", "messages": "' + b"a" * 100 + b"\n" + b'"}', b"model=demo&prompt=hi"),
)
"""What is no body of any route."""

NUM_MUTANTS = 60 * FACTOR


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Where something stands in a body."""
    items = value.items() if isinstance(value, dict) else enumerate(value)
    for key, each in items:
        yield (*path, key)
        if isinstance(each, (dict, list)):
            yield from places(each, (*path, key))


def mutate(body: dict[str, Any], draws: random.Random) -> dict[str, Any]:
    """A body in which one or two things are odd."""
    mutant = copy.deepcopy(body)
    for _ in range(draws.choice((1, 1, 2))):
        *path, last = draws.choice(list(places(mutant)))
        holder: Any = mutant
        for step in path:
            holder = holder[step]
        what = draws.random()
        if what < 0.15:
            del holder[last]
        elif what < 0.25 and isinstance(holder, list):
            holder[last:last] = [copy.deepcopy(holder[last])] * draws.choice((1, 50))
        elif what < 0.35 and isinstance(holder, dict):
            holder[draws.choice(("odd", "n", "stream", "type", "content", "role"))] = draws.choice(
                ODD
            )
        else:
            holder[last] = copy.deepcopy(draws.choice(ODD))
        if not mutant:
            break
    return mutant


def check(route: str, data: bytes, answer: httpx.Response) -> None:
    """An answer, or an error that says what is wrong."""
    told = f"{route} {data[:300]!r}: {answer.status_code} {answer.content[:500]!r}"
    assert answer.status_code == 200 or 400 <= answer.status_code < 500, told
    if answer.status_code == 200:
        return
    error = answer.json()["error"]
    assert error["message"], told
    assert error["type"], told
    assert "Traceback" not in error["message"], told
    if not route.startswith("/v1/messages"):
        assert error["param"] is None or isinstance(error["param"], str), told


def all_answered(mesh: Mesh, route: str, bodies: list[bytes]) -> None:
    """All bodies are answered in words, nothing goes wrong in the router, and nothing stays behind."""
    headers = {"content-type": "application/json"}
    with httpx.Client(base_url=mesh.url, headers=headers, timeout=60) as client:
        for data in bodies:
            check(route, data, client.post(route, content=data))
        usual = client.post(route, json=BODIES[route])
        assert usual.status_code == 200, usual.text
    check_nothing_is_left(mesh)


@pytest.mark.parametrize("route", BODIES)
def test_odd_fields_are_answered_in_words(mesh: Mesh, route: str) -> None:
    draws = random.Random(route)
    mutants = [mutate(BODIES[route], draws) for _ in range(NUM_MUTANTS)]
    # A lone surrogate is written as an escape, as clients would.
    all_answered(mesh, route, [json.dumps(mutant).encode() for mutant in mutants])


@pytest.mark.parametrize("route", BODIES)
def test_what_is_no_body_is_refused_in_words(mesh: Mesh, route: str) -> None:
    all_answered(mesh, route, list(RAW))
