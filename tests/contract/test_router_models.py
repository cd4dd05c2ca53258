"""A router with several models, aliases, a split and sessions, over workers with the fake runner."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import AsyncIterator
from typing import Any

import pytest

from pagemesh.client import AsyncClient
from pagemesh.decode.service import DECODE_ROLE
from pagemesh.v1 import console_pb2, openai_pb2
from tests.contract.http_answers import read
from tests.contract.router_harness import MODEL, Mesh, running_mesh

PROMPT = list(range(40, 60))
MODELS = (str(MODEL), f"org/other={MODEL}")
ALIASES = ("gpt=org/other", "chat=demo:3,org/other:1")


@pytest.fixture
async def mesh() -> AsyncIterator[Mesh]:
    """One worker of the first model, two of the other."""
    async with running_mesh(models=MODELS, aliases=ALIASES, explain_routes=True) as mesh:
        await mesh.add(DECODE_ROLE, "decode-other-0", served="org/other")
        await mesh.add(DECODE_ROLE, "decode-other-1", served="org/other")
        yield mesh


async def asked(
    mesh: Mesh, model: str | None, fields: Any = None, **metadata: str
) -> tuple[str, str]:
    """The model that answered, and its worker."""
    body = {"prompt": PROMPT, "max_tokens": 2, **(fields or {})}
    if model is not None:
        body["model"] = model
    answer = await mesh.completions(body, x_pagemesh_explain="true", **metadata)
    assert answer.status == 200, answer.data
    return answer.json()["model"], json.loads(answer.headers["x-pagemesh-route"])["worker"]


async def health(mesh: Mesh) -> tuple[int, Any]:
    answer = await read(mesh.console.Health(console_pb2.ConsoleHealthRequest()))
    return answer.status, answer.json()


async def test_a_request_goes_to_the_workers_of_the_model_that_it_names(mesh: Mesh) -> None:
    for _ in range(3):
        assert await asked(mesh, "demo") == ("demo", "decode-0")
        assert await asked(mesh, None) == ("demo", "decode-0")
        name, worker = await asked(mesh, "org/other")
        assert (name, worker[:13]) == ("org/other", "decode-other-")
        # The answer tells which model it is from, not by which name that was asked for.
        assert (await asked(mesh, "gpt"))[0] == "org/other"
    # A folder's path is clear, and answers under the name that is listed; a given name is the only one.
    assert await asked(mesh, str(MODEL)) == ("demo", "decode-0")
    assert (await mesh.completions({"model": "other", "prompt": PROMPT})).status == 404
    streamed = await mesh.chat(
        {"model": "gpt", "messages": [{"role": "user", "content": "Hi"}], "stream": True}
    )
    assert {event["model"] for event in streamed.events()[:-1]} == {"org/other"}
    refused = await mesh.completions({"model": "nope", "prompt": PROMPT})
    assert refused.status == 404
    assert refused.json()["error"]["message"] == (
        "the model 'nope' does not exist; this mesh serves 'demo', 'org/other', 'gpt', 'chat'"
    )


async def test_all_names_are_listed(mesh: Mesh) -> None:
    listed = await read(mesh.openai.ListModels(openai_pb2.OpenAIListModelsRequest()))
    cards = {card["id"]: card for card in listed.json()["data"]}
    assert {name: card["root"] for name, card in cards.items()} == {
        "demo": str(MODEL), "org/other": str(MODEL), "gpt": str(MODEL), "chat": "chat",
    }  # fmt: skip
    assert {card["max_model_len"] for card in cards.values()} == {512}
    for name, card in cards.items():
        request = openai_pb2.OpenAIGetModelRequest(model=name)
        assert (await read(mesh.openai.GetModel(request))).json() == card
    by_path = openai_pb2.OpenAIGetModelRequest(model=str(MODEL))
    assert (await read(mesh.openai.GetModel(by_path))).json() == cards["demo"]
    async with AsyncClient(mesh.address) as client:
        assert {m.name: m.num_decode_workers for m in await client.models()} == {
            "demo": 1, "org/other": 2, "gpt": 2, "chat": 3,
        }  # fmt: skip


async def test_models_tell_how_their_weights_are_quantised() -> None:
    """A name that is split does where all behind it agree."""
    found = {"demo": "", "org/other": "awq", "gpt": "awq", "chat": ""}
    async with running_mesh(models=MODELS, aliases=ALIASES) as mesh:
        await mesh.add(DECODE_ROLE, "decode-other-0", served="org/other", quantization="awq")
        listed = await read(mesh.openai.ListModels(openai_pb2.OpenAIListModelsRequest()))
        cards = {card["id"]: card["quantization"] for card in listed.json()["data"]}
        assert cards == {name: method or None for name, method in found.items()}
        async with AsyncClient(mesh.address) as client:
            assert {model.name: model.quantization for model in await client.models()} == found


async def test_a_split_name_gives_each_model_its_share(mesh: Mesh) -> None:
    answered = Counter([(await asked(mesh, "chat"))[0] for _ in range(80)])
    # 60 and 20 of 80 are expected; beyond these bounds it is one time in a million.
    assert answered.keys() == {"demo", "org/other"}
    assert 40 <= answered["demo"] <= 77
    sessions = [
        {(await asked(mesh, "chat", {"user": f"u{n}"}))[0] for _ in range(3)} for n in range(30)
    ]
    assert all(len(models) == 1 for models in sessions)
    assert set().union(*sessions) == {"demo", "org/other"}


async def test_a_session_stays_with_one_worker(mesh: Mesh) -> None:
    homes = set()
    for number in range(12):
        session = f"s{number}"
        ways: list[tuple[dict[str, Any], dict[str, str]]] = [
            ({}, {"x_session_id": session}),
            ({"session_id": session, "user": "somebody"}, {}),
            ({"prompt_cache_key": session}, {}),
            ({"user": session}, {}),
            ({"user": "somebody"}, {"x_session_id": session}),
        ]
        found = {
            # Another prompt each time, and too short to be found by what it is.
            (await asked(mesh, "gpt", {**fields, "prompt": [60 + number, 70 + index]}, **metadata))[
                1
            ]
            for index, (fields, metadata) in enumerate(ways)
        }
        assert len(found) == 1
        homes |= found
    assert homes == {"decode-other-0", "decode-other-1"}


async def test_a_split_name_goes_on_with_the_models_that_can_be_run(mesh: Mesh) -> None:
    await mesh.remove("decode-0")
    while (await health(mesh))[1]["decode_workers"] > 2:
        pass
    status, told = await health(mesh)
    assert (status, told["status"]) == (200, "ok")
    assert told["missing"] == "a decode worker that serves the model 'demo'"
    assert {m["model"]: m["decode_workers"] for m in told["models"]} == {"demo": 0, "org/other": 2}
    ready = await read(mesh.console.Ready(console_pb2.ConsoleReadyRequest()))
    assert (ready.status, ready.json()["missing"]) == (503, ["demo"])
    assert {(await asked(mesh, "chat"))[0] for _ in range(20)} == {"org/other"}
    refused = await mesh.completions({"model": "demo", "prompt": PROMPT})
    assert (refused.status, refused.json()["error"]["code"]) == (503, "no_worker")
    listed = await read(mesh.openai.ListModels(openai_pb2.OpenAIListModelsRequest()))
    assert [card["id"] for card in listed.json()["data"]] == ["org/other", "gpt", "chat"]


async def test_each_model_has_its_metrics(mesh: Mesh) -> None:
    for model, number in (("demo", 1), ("org/other", 2)):
        for _ in range(number):
            await asked(mesh, model)
        label = f'model_name="{model}"'
        assert await mesh.metric(f"vllm:prompt_tokens_total{{{label}}}") == 20 * number
        reason = f'vllm:request_success_total{{finished_reason="length",{label}}}'
        assert await mesh.metric(reason) == number
        assert await mesh.metric(f'pagemesh:workers{{{label},role="decode"}}') == number
