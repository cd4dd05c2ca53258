"""OpenAI's client for Node.js, and gRPC's with nothing but reflection."""

from __future__ import annotations

import json
from collections.abc import Callable

import grpc

from tests.conformance.conftest import Same, Served

ANSWER = "The capital of France is Paris."
PUBLIC_SERVICES = {"pagemesh.v1.Inference", "pagemesh.v1.OpenAI", "grpc.health.v1.Health"}


def test_openais_client_for_node_works_unchanged(
    served: Served, node: Callable[..., str], same: Same
) -> None:
    found = json.loads(node("openai.mjs", served.mesh.url))
    whole = found["whole"]
    assert whole["choices"][0]["message"]["content"] == found["streamed"] == ANSWER
    assert whole["choices"][0]["finish_reason"] == "stop"
    assert found["usage"]["total_tokens"] == whole["usage"]["total_tokens"]
    collected = found["collected"]["choices"]
    assert [choice["message"]["content"] for choice in collected] == [ANSWER] * 2
    scores = found["scored"]["content"]
    # The end of the answer is a token, and none of its content.
    assert len(scores) == whole["usage"]["completion_tokens"] - 1
    assert all(len(score["top_logprobs"]) == 2 for score in scores)
    assert [text.split()[0].strip(".") for text in found["completion"]] == ["Paris", "Tokyo"]
    assert json.loads(found["structured"])["city"] in ("Paris", "Rome")
    assert found["embedding"] == [256, 256]
    assert found["models"] == ["demo"]
    same(
        [score["token"] for score in scores],
        found["completion"],
        found["structured"],
        numbers=[score["logprob"] for score in scores],
    )


def test_its_exceptions_say_what_is_wrong(served: Served, node: Callable[..., str]) -> None:
    wrong = json.loads(node("openai.mjs", served.mesh.url))["wrong"]
    assert wrong["model"]["kind"] == "NotFoundError"
    assert wrong["model"]["code"] == "model_not_found"
    assert wrong["field"]["kind"] == wrong["stream"]["kind"] == "BadRequestError"
    assert (wrong["field"]["param"], wrong["stream"]["param"]) == ("temperature", "messages")
    assert wrong["route"]["kind"] == "NotFoundError"
    assert all(each["requestID"] for each in wrong.values())


def test_a_stranger_learns_the_typed_api_by_reflection(
    served: Served, node: Callable[..., str]
) -> None:
    found = json.loads(node("reflection.mjs", served.mesh.address))
    assert set(found["services"]) >= PUBLIC_SERVICES
    assert {"Generate", "Embed", "Tokenize", "Detokenize", "ListModels"} <= set(found["methods"])
    assert found["text"] == ANSWER
    assert found["finish_reason"] == "FINISH_REASON_STOP"
    assert found["usage"]["completion_token_count"] > 3
    assert found["back"] == "Paris is nice"
    assert [model["name"] for model in found["models"]] == ["demo"]
    assert found["embedding"] == 256
    assert found["wrong"]["code"] == grpc.StatusCode.NOT_FOUND.value[0]
    assert "nope" in found["wrong"]["details"]
    assert found["cancelled"] == grpc.StatusCode.CANCELLED.value[0]
