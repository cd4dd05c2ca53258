"""What is wrong is refused as OpenAI's client for Python expects it."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from tests.mesh.harness import MODEL, Mesh
from tests.support.late_imports import openai

CAPITAL: list[Any] = [{"role": "user", "content": "What is the capital of France?"}]


@pytest.mark.parametrize("stream", [False, True])
def test_a_schema_that_cannot_be_compiled_is_400(mesh: Mesh, stream: bool) -> None:
    schema = {"type": "object", "not": {"required": ["a"]}}
    body: dict[str, Any] = {
        "model": MODEL,
        "messages": CAPITAL,
        "stream": stream,
        "response_format": {
            "type": "json_schema",
            "json_schema": {"name": "x", "schema": schema, "strict": True},
        },
    }
    with pytest.raises(
        openai.BadRequestError, match=r'these keys are not supported: \["not"\]'
    ) as caught:
        mesh.client().chat.completions.create(**body)
    assert caught.value.param == "response_format"


@pytest.mark.parametrize("stream", [False, True])
def test_a_tool_whose_schema_cannot_be_compiled_is_400(mesh: Mesh, stream: bool) -> None:
    schema = {"type": "object", "not": {"required": ["a"]}}
    function = {"name": "f", "parameters": schema, "strict": True}
    body: dict[str, Any] = {
        "model": MODEL,
        "messages": CAPITAL,
        "stream": stream,
        "tools": [{"type": "function", "function": function}],
        "tool_choice": "required",
    }
    with pytest.raises(
        openai.BadRequestError, match=r'these keys are not supported: \["not"\]'
    ) as caught:
        mesh.client().chat.completions.create(**body)
    assert caught.value.param == "tools"
    assert "structured_outputs" not in caught.value.message


@pytest.mark.parametrize(
    ("options", "param"),
    [
        ({"messages": []}, "messages"),
        ({"messages": "hello"}, "messages"),
        ({"messages": [{"role": "", "content": "x"}]}, "messages"),
        ({"messages": [{"role": "user", "content": 7}]}, "messages"),
        ({"temperature": -1}, "temperature"),
        ({"temperature": 1e9}, "temperature"),
        ({"temperature": "hot"}, "temperature"),
        ({"top_p": -0.5}, "top_p"),
        ({"max_tokens": -3}, "max_tokens"),
        ({"max_tokens": 10**12}, "max_tokens"),
        ({"seed": "x"}, "seed"),
        ({"stream": "yes"}, "stream"),
        ({"stop": 5}, "stop"),
    ],
)
def test_bad_input_is_400_and_names_the_field(
    mesh: Mesh, options: dict[str, Any], param: str
) -> None:
    body = {"model": MODEL, "messages": CAPITAL, **options}
    with pytest.raises(openai.BadRequestError) as caught:
        mesh.client().chat.completions.create(**body)
    assert (caught.value.param or "").startswith(param)
    assert caught.value.type == "invalid_request_error"


def test_a_prompt_longer_than_the_context_is_400(mesh: Mesh) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        mesh.client().completions.create(model=MODEL, prompt="word " * 5000)
    assert caught.value.code == "context_length_exceeded"
    assert "2048" in caught.value.message


def test_broken_json_is_400(mesh: Mesh) -> None:
    headers = {"content-type": "application/json"}
    for content in (b"{", b"", b"[]", b'"x"', b"\xff\xfe", b'{"model": NaN}'):
        response = httpx.post(
            f"{mesh.url}/v1/chat/completions", content=content, headers=headers, timeout=10
        )
        assert response.status_code == 400, content
        assert response.json()["error"]["type"] == "invalid_request_error"


@pytest.mark.parametrize("stream", [False, True])
def test_an_unknown_model_is_404(mesh: Mesh, stream: bool) -> None:
    with pytest.raises(openai.NotFoundError) as caught:
        mesh.client().chat.completions.create(
            model="no/such-model", messages=CAPITAL, stream=stream
        )
    assert caught.value.code == "model_not_found"
    with pytest.raises(openai.NotFoundError):
        mesh.client().models.retrieve("no/such-model")


def test_an_unknown_route_is_404(mesh: Mesh) -> None:
    with pytest.raises(openai.NotFoundError, match="Unknown route: POST /v1/images/generations"):
        mesh.client().images.generate(model=MODEL, prompt="x")


@pytest.mark.parametrize("path", ["/v1/models/%ff", "/v1/responses/%ff", "/console/%ff"])
def test_bytes_in_a_path_that_are_no_text_are_the_clients_mistake(mesh: Mesh, path: str) -> None:
    response = httpx.get(f"{mesh.url}{path}", timeout=10)
    assert response.status_code in (400, 404)
    assert response.json()["error"]["type"] == "invalid_request_error"
    assert "Error" not in response.json()["error"]["message"]


@pytest.mark.parametrize(("kib", "status"), [(8, 200), (16, 200), (55, 200), (70, 431)])
def test_headers_are_served_up_to_their_limit_and_not_by_chance(
    mesh: Mesh, kib: int, status: int
) -> None:
    body = {"model": MODEL, "prompt": "Hi", "max_tokens": 1}
    headers = {"cookie": "a" * (kib * 1024)}
    with httpx.Client(timeout=10) as client:
        answers = [
            client.post(f"{mesh.url}/v1/completions", json=body, headers=headers) for _ in range(8)
        ]
    assert [answer.status_code for answer in answers] == [status] * 8


def test_a_call_that_was_cut_off_can_be_sent_back(mesh: Mesh) -> None:
    function: Any = {"name": "get_weather", "arguments": '{"city": "'}
    calls: Any = [{"id": "a", "type": "function", "function": function}]
    messages: Any = [*CAPITAL, {"role": "assistant", "tool_calls": calls}, *CAPITAL]
    answer = mesh.client().chat.completions.create(model=MODEL, messages=messages, max_tokens=4)
    assert answer.usage is not None and answer.usage.completion_tokens


def test_a_body_above_the_limit_is_413(mesh: Mesh) -> None:
    with pytest.raises(openai.APIStatusError) as caught:
        mesh.client().completions.create(model=MODEL, prompt="a" * (33 * 2**20))
    assert caught.value.status_code == 413
    assert caught.value.code == "request_too_large"


def test_a_body_below_the_limit_reaches_the_router(mesh: Mesh) -> None:
    body = b'{"model": "demo", "messages": []' + b" " * (30 * 2**20) + b"}"
    headers = {"content-type": "application/json"}
    response = httpx.post(
        f"{mesh.url}/v1/chat/completions", content=body, headers=headers, timeout=20
    )
    assert response.status_code == 400
    assert response.json()["error"]["param"] == "messages"
