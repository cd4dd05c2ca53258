"""The OpenAI routes through Envoy, seen by the openai client and by plain HTTP."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from tests.gateway.conftest import MAX_BODY_MIB, Gateway
from tests.gateway.stand_in_router import ROUTE_LINE
from tests.support.late_imports import openai

QUESTION: list[Any] = [{"role": "user", "content": "?"}]


def client_of(gateway: Gateway) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{gateway.url}/v1", api_key="k", max_retries=0, timeout=20)


def chat(gateway: Gateway, model: str, **options: Any) -> Any:
    return client_of(gateway).chat.completions.create(model=model, messages=QUESTION, **options)


@pytest.mark.parametrize(
    ("status", "expected"),
    [
        (400, "BadRequestError"),
        (401, "AuthenticationError"),
        (403, "PermissionDeniedError"),
        (404, "NotFoundError"),
        (409, "ConflictError"),
        (422, "UnprocessableEntityError"),
        (429, "RateLimitError"),
        (500, "InternalServerError"),
        (503, "InternalServerError"),
        (504, "InternalServerError"),
    ],
)
def test_the_routers_status_and_error_reach_the_client(
    gateway: Gateway, status: int, expected: str
) -> None:
    error: type[openai.APIStatusError] = getattr(openai, expected)
    with pytest.raises(error) as caught:
        chat(gateway, f"status:{status}")
    assert caught.value.status_code == status
    assert caught.value.body == {
        "message": "told so",
        "type": "some_type",
        "param": "p",
        "code": "some_code",
    }
    assert caught.value.response.headers["retry-after"] == "0"
    assert "x-http-status" not in caught.value.response.headers


@pytest.mark.parametrize("status", ["", "99", "2000", "x"])
def test_a_status_that_is_none_is_ignored(gateway: Gateway, status: str) -> None:
    response = httpx.post(f"{gateway.url}/v1/chat/completions", json={"model": f"status:{status}"})
    assert response.status_code == 200
    assert "x-http-status" not in response.headers


@pytest.mark.parametrize(
    ("code", "status", "kind"),
    [
        ("INVALID_ARGUMENT", 400, "invalid_request_error"),
        ("UNAUTHENTICATED", 401, "authentication_error"),
        ("PERMISSION_DENIED", 403, "permission_error"),
        ("NOT_FOUND", 404, "invalid_request_error"),
        ("RESOURCE_EXHAUSTED", 429, "rate_limit_error"),
        ("INTERNAL", 500, "server_error"),
        ("UNAVAILABLE", 503, "server_error"),
        ("DEADLINE_EXCEEDED", 504, "server_error"),
    ],
)
def test_an_rpc_that_ends_without_a_body_gets_an_openai_error(
    gateway: Gateway, code: str, status: int, kind: str
) -> None:
    with pytest.raises(openai.APIStatusError) as caught:
        chat(gateway, f"abort:{code}")
    assert caught.value.status_code == status
    assert caught.value.body == {
        "message": 'not "now",\n100 % ü',
        "type": kind,
        "param": None,
        "code": None,
    }
    assert "grpc-status" not in caught.value.response.headers


def test_tokens_come_through_one_by_one(gateway: Gateway) -> None:
    openai_stand_in = gateway.router.openai
    # The response's headers come with the first token.
    openai_stand_in.next_token.release()
    stream = chat(gateway, "paced:one-by-one", stream=True)
    # Each token is sent only after the one before has arrived: a buffer anywhere would hang here.
    for index, chunk in zip(range(5), stream, strict=False):
        assert chunk.choices[0].delta.content == str(index)
        openai_stand_in.next_token.release()
    stream.close()
    assert openai_stand_in.ended.get(timeout=5) == "one-by-one"


def test_a_client_that_leaves_cancels_the_rpc_before_its_first_token(gateway: Gateway) -> None:
    with pytest.raises(httpx.ReadTimeout):
        httpx.post(f"{gateway.url}/v1/chat/completions", json={"model": "paced:left"}, timeout=0.3)
    assert gateway.router.openai.ended.get(timeout=5) == "left"


def test_an_error_in_the_middle_of_a_stream_is_raised(gateway: Gateway) -> None:
    stream = chat(gateway, "broken", stream=True)
    assert next(stream).choices[0].delta.content == "a"
    with pytest.raises(openai.APIError, match="died"):
        next(stream)


@pytest.mark.parametrize("name", ["m", "org/name", "org/sub/name v1.0"])
def test_model_names_may_hold_slashes(gateway: Gateway, name: str) -> None:
    assert client_of(gateway).models.retrieve(name).id == name


def test_models_are_listed_whatever_the_query(gateway: Gateway) -> None:
    assert [model.id for model in client_of(gateway).models.list()] == ["m"]
    assert httpx.get(f"{gateway.url}/v1/models?limit=3&api-version=1").status_code == 200


def test_headers_of_the_client_arrive_but_forged_ones_do_not(gateway: Gateway) -> None:
    seen = gateway.router.openai.metadata
    while not seen.empty():
        seen.get()
    chat_headers = {
        "authorization": "Bearer secret",
        "x-request-id": "request-7",
        "traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
        "x-http-status": "500",
        "x-client-id": "somebody-else",
    }
    response = httpx.post(
        f"{gateway.url}/v1/chat/completions", json={"model": "size"}, headers=chat_headers
    )
    metadata = seen.get(timeout=5)
    assert response.status_code == 200
    assert response.headers["x-request-id"] == "request-7"
    assert metadata["authorization"] == "Bearer secret"
    assert metadata["x-request-id"] == "request-7"
    assert metadata["traceparent"] == chat_headers["traceparent"]
    assert "x-http-status" not in metadata
    assert "x-client-id" not in metadata


@pytest.mark.parametrize("model", ["size", "broken"], ids=["json", "events"])
def test_a_route_is_explained_to_whoever_asks(gateway: Gateway, model: str) -> None:
    chat = f"{gateway.url}/v1/chat/completions"
    asking = {"x-pagemesh-explain": "true"}
    explained = httpx.post(chat, json={"model": model}, headers=asking)
    assert explained.headers["x-pagemesh-route"] == ROUTE_LINE
    assert "x-pagemesh-route" not in httpx.post(chat, json={"model": model}).headers


def test_bodies_up_to_the_limit_pass_and_larger_ones_are_refused(gateway: Gateway) -> None:
    head = b'{"model": "size", "pad": "'
    limit = MAX_BODY_MIB * 2**20
    fits = head + b"a" * (limit - 1024) + b'"}'
    url = f"{gateway.url}/v1/chat/completions"
    headers = {"content-type": "application/json"}
    answer = httpx.post(url, content=fits, headers=headers, timeout=20)
    assert answer.json() == {"num_bytes": len(fits)}

    refused = httpx.post(url, content=fits + b" " * 2**20, headers=headers, timeout=20)
    assert refused.status_code == 413
    assert refused.json()["error"] == {
        "message": f"The request's body is larger than {MAX_BODY_MIB} MiB.",
        "type": "invalid_request_error",
        "param": None,
        "code": "request_too_large",
    }
