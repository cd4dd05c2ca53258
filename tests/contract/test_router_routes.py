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

from pagemesh.config import ChatConfig
from pagemesh.core.engine import Pooling
from pagemesh.router.chat.rules import ChatRules
from pagemesh.router.openai.tokenizing import tokenizer_info
from pagemesh.router.openapi.document import openapi_document
from pagemesh.router.served_model import ServedModel
from pagemesh.tokenizer import Tokenizer
from pagemesh.tokenizer.model_defaults import GenerationDefaults, Matryoshka
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
        ("Tokenize", {"messages": [{"role": ""}]}, "messages[0].role"),
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


async def test_how_many_requests_there_are_is_told(mesh: Mesh) -> None:
    async def load() -> Any:
        return (await read(mesh.console.Load(console_pb2.ConsoleLoadRequest()))).json()

    assert await load() == {"server_load": 0}
    stream = mesh.openai.Completions(
        http_body({"prompt": "a", "max_tokens": 500, "stream": True, "ignore_eos": True})
    )
    async for _ in stream:
        assert await load() == {"server_load": 1}
        break
    stream.cancel()


async def test_a_tokenizers_settings_are_shown_where_that_is_allowed(mesh: Mesh) -> None:
    request = console_pb2.ConsoleTokenizerInfoRequest(model="demo")
    answer = await read(mesh.console.TokenizerInfo(request))
    assert answer.status == 404
    assert "--enable-tokenizer-info-endpoint" in answer.json()["error"]["message"]
    other = console_pb2.ConsoleTokenizerInfoRequest(model="other")
    assert (await read(mesh.console.TokenizerInfo(other))).status == 404
    model = ServedModel(
        "demo",
        TOKENIZER,
        GenerationDefaults(),
        0,
        Matryoshka(),
        ChatRules.of(ChatConfig(), TOKENIZER),
    )
    info = tokenizer_info(model)
    assert info["chat_template"] == TOKENIZER.chat_template.source
    assert info["eos_token"] == "<|im_end|>"
    assert info["tokenizer_class"]


async def test_vllms_other_routes_answer(mesh: Mesh) -> None:
    pooled = (await post(mesh, "Pooling", {"input": [[20, 21], [22]]})).json()
    assert [entry["data"] for entry in pooled["data"]] == [[21, 441, 1], [22, 484, 1]]
    assert {entry["object"] for entry in pooled["data"]} == {"pooling"}
    messages = [{"role": "user", "content": "hi"}]
    body = {
        "messages": messages,
        "max_tokens": 5,
        "n": 2,
        "temperature": 0.5,
        "stop": "x",
        "seed": 7,
    }
    rendered = (await post(mesh, "RenderChat", body)).json()
    ids = TOKENIZER.encode_batch(
        [TOKENIZER.chat_template.render(messages)], add_special_tokens=False
    )
    assert rendered["token_ids"] == ids[0]
    sampling = rendered["sampling_params"]
    assert {name: sampling[name] for name in ("n", "max_tokens", "temperature", "stop", "seed")} == {
        "n": 2, "max_tokens": 5, "temperature": 0.5, "stop": ["x"], "seed": 7,
    }  # fmt: skip
    assert (rendered["model"], rendered["stream"]) == ("demo", False)


@pytest.mark.parametrize(
    ("body", "answer"),
    [
        ({"messages": [{"role": "user", "content": "hi"}], "max_tokens": 1}, "chat.completion"),
        ({"prompt": "hi", "max_tokens": 1}, "text_completion"),
        ({"input": "hi"}, "list"),
        ({"text_1": "a", "text_2": "b"}, "list"),
        ({"queries": "a", "documents": "b"}, "list"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
async def test_invocations_are_known_by_their_fields(
    mesh: Mesh, body: dict[str, Any], answer: str
) -> None:
    assert (await post(mesh, "Invocations", body)).json()["object"] == answer


async def test_other_invocations_are_taken_for_chats(mesh: Mesh) -> None:
    ranked = await post(mesh, "Invocations", {"query": "a", "documents": ["b"]})
    assert ranked.json()["results"][0]["index"] == 0
    stream = await read(mesh.openai.Invocations(http_body({"prompt": "hi", "stream": True})))
    assert stream.content_type.startswith("text/event-stream")
    refused = await post(mesh, "Invocations", {"max_tokens": 1})
    assert (refused.status, refused.json()["error"]["param"]) == (400, "messages")


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
    check("Pooled", await post(mesh, "Pooling", {"input": ["a", "b"]}))
    check("RenderedChat", await post(mesh, "RenderChat", {"messages": messages}))
    check("Load", await read(mesh.console.Load(console_pb2.ConsoleLoadRequest())))
    check("Scores", await post(mesh, "Score", {"text_1": "a", "text_2": "b"}))
    check("Ranking", await post(mesh, "Rerank", {"query": "a", "documents": ["b"]}))
    check("Tokens", await post(mesh, "Tokenize", {"prompt": "a"}))
    check("Text", await post(mesh, "Detokenize", {"tokens": [20]}))
    check("Error", await post(mesh, "Tokenize", {}))
    check("ModelList", await read(mesh.openai.ListModels(openai_pb2.OpenAIListModelsRequest())))
    check("Health", await read(mesh.console.Health(console_pb2.ConsoleHealthRequest())))
