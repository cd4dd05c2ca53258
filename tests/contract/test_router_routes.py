"""Routes of a router beside chat and completions: tokens, scores, readiness, version."""

from __future__ import annotations

import asyncio
import json
import math
import time
from collections.abc import AsyncIterator
from importlib import metadata
from typing import Any

import jsonschema
import pytest

from pagemesh.engine.interface import Pooling
from pagemesh.router.openapi.document import openapi_document
from pagemesh.tokenizer import Tokenizer
from pagemesh.v1 import console_pb2, openai_pb2
from tests.contract.http_answers import Answer, http_body, read
from tests.contract.router_harness import DEADLINE_S, MODEL, Mesh, running_mesh

TOKENIZER = Tokenizer(MODEL)


@pytest.fixture
async def mesh() -> AsyncIterator[Mesh]:
    async with running_mesh(num_blocks=256, pooling=Pooling("last", normalize=False)) as mesh:
        yield mesh


async def post(mesh: Mesh, route: str, body: dict[str, Any]) -> Answer:
    return await read(getattr(mesh.openai, route)(http_body(body)))


def cosine(one: str, other: str) -> float:
    """Of what the fake engine makes of two texts: the last id, its square, 1."""
    ids = TOKENIZER.encode_batch([one, other], add_special_tokens=True)
    (a, b) = ((float(each[-1]), float(each[-1] ** 2), 1.0) for each in ids)
    return sum(x * y for x, y in zip(a, b, strict=True)) / (math.hypot(*a) * math.hypot(*b))


async def test_a_text_is_tokenized_and_detokenized(mesh: Mesh) -> None:
    text = "Paris <|im_end|> is nice"
    (ids,) = TOKENIZER.encode_batch([text], add_special_tokens=True)
    answer = await post(mesh, "Tokenize", {"model": "demo", "prompt": text})
    assert answer.json() == {
        "count": len(ids),
        "max_model_len": 512,
        "tokens": ids,
        "token_strs": None,
    }
    strings = await post(mesh, "Tokenize", {"prompt": text, "return_token_strs": True})
    assert strings.json()["token_strs"][:2] == TOKENIZER.token_strings(ids)[:2]
    assert "<|im_end|>" in strings.json()["token_strs"]
    back = await post(mesh, "Detokenize", {"tokens": ids})
    assert back.json() == {"prompt": text}


async def test_a_conversation_is_tokenized_as_it_is_prompted(mesh: Mesh) -> None:
    messages = [{"role": "user", "content": "hi"}]
    rendered = "<|im_start|>user\nhi<|im_end|>\n"
    for options, text in (
        ({}, rendered + "<|im_start|>assistant\n"),
        ({"add_generation_prompt": False}, rendered),
    ):
        body = {"model": "demo", "messages": messages, **options}
        (ids,) = TOKENIZER.encode_batch([text], add_special_tokens=False)
        assert (await post(mesh, "Tokenize", body)).json()["tokens"] == ids
    answer = await mesh.chat({"messages": messages, "max_tokens": 1})
    prompted = answer.json()["usage"]["prompt_tokens"]
    assert (await post(mesh, "Tokenize", {"messages": messages})).json()["count"] == prompted


async def test_texts_are_scored_by_the_angle_between_their_embeddings(mesh: Mesh) -> None:
    answer = await post(mesh, "Score", {"text_1": "one", "text_2": ["one", "two and"]})
    body = answer.json()
    assert [entry["index"] for entry in body["data"]] == [0, 1]
    scores = [entry["score"] for entry in body["data"]]
    assert scores == pytest.approx([1.0, cosine("one", "two and")])
    assert scores[0] > scores[1]
    assert body["usage"]["total_tokens"] == body["usage"]["prompt_tokens"] > 4
    pairs = await post(mesh, "Score", {"text_1": ["a", "b"], "text_2": ["b", "b"]})
    assert [e["score"] for e in pairs.json()["data"]] == pytest.approx([cosine("a", "b"), 1.0])


async def test_documents_are_put_in_order(mesh: Mesh) -> None:
    documents = ["two and", "one", "three"]
    body = {"model": "demo", "query": "one", "documents": documents}
    results = (await post(mesh, "Rerank", body)).json()["results"]
    assert [result["relevance_score"] for result in results] == sorted(
        (cosine("one", each) for each in documents), reverse=True
    )
    assert results[0]["index"] == 1
    assert results[0]["document"] == {"text": "one"}
    best = await post(mesh, "Rerank", body | {"top_n": 1, "return_documents": False})
    assert [set(result) for result in best.json()["results"]] == [{"index", "relevance_score"}]


@pytest.mark.parametrize(
    ("route", "body", "param"),
    [
        ("Tokenize", {}, "prompt"),
        ("Tokenize", {"prompt": 1}, "prompt"),
        ("Tokenize", {"prompt": "a", "messages": []}, "prompt"),
        ("Tokenize", {"messages": []}, "messages"),
        ("Tokenize", {"messages": [{"role": "nobody"}]}, "messages[0].role"),
        ("Detokenize", {"tokens": ["a"]}, "tokens[0]"),
        ("Detokenize", {"tokens": [10**6]}, "tokens"),
        ("Detokenize", {}, "tokens"),
        ("Score", {"text_1": ["a", "b"], "text_2": "a"}, "text_1"),
        ("Score", {"text_1": [], "text_2": "a"}, "text_1"),
        ("Score", {"text_1": "a", "text_2": ""}, "text_2"),
        ("Score", {"text_1": "a"}, "text_2"),
        ("Rerank", {"query": "a", "documents": []}, "documents"),
        ("Rerank", {"query": "a", "documents": ["a"], "top_n": -1}, "top_n"),
        ("Rerank", {"query": "", "documents": ["a"]}, "query"),
    ],
)
async def test_bad_input_is_named(mesh: Mesh, route: str, body: dict[str, Any], param: str) -> None:
    answer = await post(mesh, route, body)
    assert answer.status == 400
    assert answer.json()["error"]["param"] == param
    unknown = await post(mesh, route, body | {"model": "nope"})
    assert unknown.status in (400, 404)


async def test_a_mesh_is_ready_when_all_its_models_can_be_served(mesh: Mesh) -> None:
    ready = await read(mesh.console.Ready(console_pb2.ConsoleReadyRequest()))
    assert (ready.status, ready.json()) == (200, {"status": "ok", "missing": []})
    await mesh.remove("decode-0")
    deadline = time.monotonic() + DEADLINE_S
    while (await mesh.health())["decode_workers"]:
        assert time.monotonic() < deadline
        await asyncio.sleep(0.01)
    gone = await read(mesh.console.Ready(console_pb2.ConsoleReadyRequest()))
    assert (gone.status, gone.json()) == (503, {"status": "unavailable", "missing": ["demo"]})


async def test_the_version_is_told(mesh: Mesh) -> None:
    answer = await read(mesh.console.Version(console_pb2.ConsoleVersionRequest()))
    assert answer.json() == {"version": metadata.version("pagemesh")}


async def test_all_routes_are_described(mesh: Mesh) -> None:
    answer = await read(mesh.console.OpenApi(console_pb2.ConsoleOpenApiRequest()))
    assert answer.content_type == "application/json"
    assert answer.json() == json.loads(json.dumps(openapi_document()))


async def test_answers_are_as_described(mesh: Mesh) -> None:
    schemas = openapi_document()["components"]["schemas"]

    def check(name: str, answer: Answer) -> None:
        schema = {"$ref": f"#/components/schemas/{name}", "components": {"schemas": schemas}}
        jsonschema.Draft202012Validator(schema).validate(answer.json())

    messages = [{"role": "user", "content": "hi"}]
    check("ChatCompletion", await mesh.chat({"messages": messages, "max_tokens": 2}))
    check("Completion", await mesh.completions({"prompt": "hi", "max_tokens": 2}))
    check("Response", await post(mesh, "Responses", {"input": "hi", "max_output_tokens": 16}))
    check("Embeddings", await post(mesh, "Embeddings", {"input": ["a", "b"]}))
    check("Scores", await post(mesh, "Score", {"text_1": "a", "text_2": "b"}))
    check("Ranking", await post(mesh, "Rerank", {"query": "a", "documents": ["b"]}))
    check("Tokens", await post(mesh, "Tokenize", {"prompt": "a"}))
    check("Text", await post(mesh, "Detokenize", {"tokens": [20]}))
    check("Error", await post(mesh, "Tokenize", {}))
    check("ModelList", await read(mesh.openai.ListModels(openai_pb2.OpenAIListModelsRequest())))
    check("Health", await read(mesh.console.Health(console_pb2.ConsoleHealthRequest())))
