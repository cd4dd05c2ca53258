"""Embeddings of a router, asked through the Python clients and as the gateway asks."""

from __future__ import annotations

import asyncio
import base64
import json
import shutil
import struct
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from pagemesh.client import AsyncClient, Embeddings, Usage
from pagemesh.core.engine import Pooling
from pagemesh.errors import (
    DeadlineError,
    InvalidRequestError,
    ModelNotFoundError,
    UnsupportedError,
)
from pagemesh.tokenizer import Tokenizer
from pagemesh.tokenizer.chat_template import RenderOptions
from tests.contract.http_answers import Answer, http_body, read
from tests.contract.router_harness import MODEL, Mesh, eventually, running_mesh

TOKENIZER = Tokenizer(MODEL)
LAST = Pooling("last", normalize=False)


@pytest.fixture
async def mesh() -> AsyncIterator[Mesh]:
    async with running_mesh(prefill=1, num_blocks=256, pooling=LAST) as mesh:
        yield mesh


async def post(mesh: Mesh, **body: object) -> Answer:
    return await read(mesh.openai.Embeddings(http_body(body)))


def vector(token_ids: list[int]) -> tuple[float, ...]:
    """What the fake engine makes of a prompt."""
    last = float(token_ids[-1])
    return (last, last * last, 1.0)


async def test_texts_are_embedded_in_their_order(mesh: Mesh) -> None:
    texts = [f"{'word ' * count}{count}" for count in (1, 40, 7)]
    ids = [TOKENIZER.encode_batch([text], add_special_tokens=True)[0] for text in texts]
    async with AsyncClient(mesh.address) as client:
        answer = await client.embed(texts)
        assert answer == Embeddings(tuple(map(vector, ids)), Usage(sum(map(len, ids)), 0, 0))
        again = await client.embed(texts[1])
    assert again.vectors == (vector(ids[1]),)
    assert 16 <= again.usage.num_cached_tokens < len(ids[1])
    # Embeddings are computed where they are asked for, however long the prompt.
    assert mesh.workers["prefill-0"].metric("vllm:prompt_tokens_total", model_name="demo") == 0


async def test_embeddings_are_answered_as_openai_does(mesh: Mesh) -> None:
    answer = await post(mesh, model="demo", input=[[20, 21], [22]])
    assert answer.status == 200
    assert answer.content_type == "application/json"
    body = answer.json()
    assert body.pop("id").startswith("embd-")
    assert body.pop("created") > 1_700_000_000
    assert body == {
        "object": "list",
        "data": [
            {"object": "embedding", "index": 0, "embedding": [21.0, 441.0, 1.0]},
            {"object": "embedding", "index": 1, "embedding": [22.0, 484.0, 1.0]},
        ],
        "model": "demo",
        "usage": {"prompt_tokens": 3, "total_tokens": 3},
    }
    packed = (await post(mesh, input=[20, 21], encoding_format="base64")).json()
    assert len(packed["data"]) == 1
    data = base64.b64decode(packed["data"][0]["embedding"])
    assert struct.unpack("<3f", data) == (21.0, 441.0, 1.0)


@pytest.mark.parametrize(
    ("changes", "param", "message"),
    [
        ({"input": None}, "input", "input"),
        ({"input": []}, "input", "input is an empty list"),
        ({"input": ""}, "input", "input is empty"),
        ({"input": ["a", 1]}, "input", "its items must all be strings, ids or lists of ids"),
        ({"input": ["a"] * 2049}, "input", "input has 2049 entries, but at most 2048 are allowed"),
        ({"input": [10**6]}, "input", "input has the token id 1000000, but the model's ids end at"),
        (
            {"input": [5] * 513},
            "input",
            "context length is 512 tokens. However, input has 513 tokens.",
        ),
        ({"dimensions": 2}, "dimensions", "dimensions is 2, but the model was not trained for sh"),
        ({"dimensions": 0}, "dimensions", "dimensions is 0"),
        ({"encoding_format": "int8"}, "encoding_format", 'encoding_format is "int8"'),
        (
            {"truncate_prompt_tokens": 513},
            "truncate_prompt_tokens",
            "truncate_prompt_tokens is 513",
        ),
        ({"use_activation": "no"}, "use_activation", 'use_activation is "no"'),
        ({"messages": [{"role": "user", "content": "x"}]}, "messages", "and not both"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
async def test_a_faulty_request_is_refused_by_name(
    mesh: Mesh, changes: dict[str, Any], param: str, message: str
) -> None:
    answer = await post(mesh, **({"input": "x"} | changes))
    assert answer.status == 400
    error = answer.json()["error"]
    assert error["param"] == param
    assert message in error["message"]


async def test_vectors_have_a_length_of_1_where_it_is_asked_for(mesh: Mesh) -> None:
    (entry,) = (await post(mesh, input=[2], use_activation=True)).json()["data"]
    assert entry["embedding"] == pytest.approx([2 / 21**0.5, 4 / 21**0.5, 1 / 21**0.5])
    (entry,) = (await post(mesh, input=[2], use_activation=False)).json()["data"]
    assert entry["embedding"] == [2.0, 4.0, 1.0]


async def test_a_conversation_is_embedded_as_its_template_writes_it(mesh: Mesh) -> None:
    messages = [{"role": "user", "content": "What is 3 + 9?"}]
    template = TOKENIZER.chat_template
    for more, options in (
        ({}, RenderOptions(add_generation_prompt=False)),
        ({"add_generation_prompt": True}, RenderOptions()),
    ):
        (ids,) = TOKENIZER.encode_batch(
            [template.render(messages, options)], add_special_tokens=False
        )
        body = (await post(mesh, messages=messages, **more)).json()
        assert body["usage"]["prompt_tokens"] == len(ids)
        assert tuple(body["data"][0]["embedding"]) == vector(ids)


async def test_inputs_are_cut(mesh: Mesh) -> None:
    text = "a b c d e"
    (ids,) = TOKENIZER.encode_batch([text], add_special_tokens=True)
    for more, kept in (
        ({"truncate_prompt_tokens": 3}, ids[:3]),
        ({"truncate_prompt_tokens": 3, "truncation_side": "left"}, ids[-3:]),
        ({"truncate_prompt_tokens": -1}, ids),
    ):
        body = (await post(mesh, input=[text], **more)).json()
        assert tuple(body["data"][0]["embedding"]) == vector(kept)
        assert body["usage"]["prompt_tokens"] == len(kept)
    body = (await post(mesh, input=[[20, 21, 22], [23]], truncate_prompt_tokens=2)).json()
    assert [entry["embedding"][0] for entry in body["data"]] == [21.0, 23.0]


async def test_scores_and_ranks_take_vllms_fields(mesh: Mesh) -> None:
    request = http_body({"queries": "a b", "documents": ["a b", "c"], "truncate_prompt_tokens": 1})
    body = (await read(mesh.openai.Score(request))).json()
    assert body["data"][0]["score"] == pytest.approx(1.0)
    assert body["usage"] == {"prompt_tokens": 3, "total_tokens": 3}
    request = http_body({"query": "a b", "documents": ["c", "a b"], "truncate_prompt_tokens": 1})
    body = (await read(mesh.openai.Rerank(request))).json()
    assert body["results"][0]["document"] == {"text": "a b"}
    assert body["usage"] == {"prompt_tokens": 3, "total_tokens": 3}


async def test_models_that_were_trained_for_it_give_shorter_vectors(tmp_path: Path) -> None:
    folder = tmp_path / "demo"
    shutil.copytree(MODEL, folder, ignore=shutil.ignore_patterns("*.safetensors"))
    config = json.loads((folder / "config.json").read_text())
    config["matryoshka_dimensions"] = [2, 4]
    (folder / "config.json").write_text(json.dumps(config))
    async with running_mesh(models=(folder,), pooling=LAST) as mesh:
        body = {"input": [[20, 21], [22]], "dimensions": 2}
        answer = (await post(mesh, **body)).json()
        assert [entry["embedding"] for entry in answer["data"]] == [[21.0, 441.0], [22.0, 484.0]]
        packed = (await post(mesh, **body, encoding_format="base64")).json()
        assert base64.b64decode(packed["data"][0]["embedding"]) == struct.pack("<2f", 21, 441)
        other = await post(mesh, **body | {"dimensions": 3})
        assert other.json()["error"]["message"] == "dimensions is 3, but the model's may be 2, 4"
        longer = await post(mesh, **body | {"dimensions": 4})
        assert (other.status, longer.status) == (400, 400)
        message = longer.json()["error"]["message"]
        assert message == "dimensions is 4, but the model's vectors have 3"


async def test_what_the_service_cannot_embed_is_refused(mesh: Mesh) -> None:
    async with AsyncClient(mesh.address) as client:
        with pytest.raises(InvalidRequestError, match="texts has 0 entries"):
            await client.embed([])
        with pytest.raises(InvalidRequestError, match="texts is empty"):
            await client.embed(["x", ""])
        with pytest.raises(ModelNotFoundError):
            await client.embed("x", model="other")


async def test_a_model_that_makes_no_embeddings_refuses() -> None:
    async with running_mesh() as mesh:
        answer = await post(mesh, input="x")
        assert answer.status == 400
        assert answer.json()["error"]["message"] == "the model does not support embeddings"
        async with AsyncClient(mesh.address) as client:
            with pytest.raises(UnsupportedError):
                await client.embed("x")


async def test_a_model_without_a_head_refuses_to_generate() -> None:
    async with running_mesh(pooling=LAST, generates=False) as mesh:
        assert (await post(mesh, input="x")).status == 200
        answer = await mesh.completions({"prompt": "x"})
        assert answer.status == 400
        assert "makes embeddings and does not generate text" in answer.json()["error"]["message"]


async def test_embeddings_of_a_lost_worker_are_computed_by_another() -> None:
    async with running_mesh(
        decode=2, policy="round_robin", pooling=LAST, seconds_per_token=0.2
    ) as mesh:
        asked = asyncio.create_task(post(mesh, input=[[20], [21], [22], [23]]))
        await eventually(lambda: mesh.workers["decode-0"].engine.load().num_running > 0)
        await mesh.workers["decode-0"].kill()
        answer = await asked
        assert [item["embedding"][0] for item in answer.json()["data"]] == [20, 21, 22, 23]
        assert await mesh.num_migrated("lost") > 0


async def test_an_embedding_that_nobody_waits_for_ends() -> None:
    async with running_mesh(pooling=LAST, seconds_per_token=0.2, num_blocks=64) as mesh:
        async with AsyncClient(mesh.address) as client:
            with pytest.raises(DeadlineError):
                await client.embed(["x"] * 64, timeout=0.1)
        engine = mesh.workers["decode-0"].engine
        await eventually(lambda: engine.load().num_running + engine.load().num_waiting == 0)
        assert engine.num_free_blocks == 64


async def test_embeddings_are_counted(mesh: Mesh) -> None:
    await post(mesh, input=[[20, 21], [22]])
    labels = 'model_name="demo"'
    assert await mesh.metric(f"vllm:prompt_tokens_total{{{labels}}}") == 3
    ended = f'vllm:request_success_total{{finished_reason="stop",{labels}}}'
    assert await mesh.metric(ended) == 2
    worker = mesh.workers["decode-0"]
    assert worker.metric("vllm:prompt_tokens_total", model_name="demo") == 3
