"""A mesh that serves a decoder and an encoder: each name reaches its model, and vectors are transformers'."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch

from tests.identity.checkpoints import Model
from tests.identity.encoder_checkpoints import EncoderRecipe, make_encoder, reference_vector
from tests.mesh.harness import Mesh, running_mesh, until
from tests.mesh.odd_worker import running_odd_worker
from tests.support.late_imports import openai, transformers

pytestmark = pytest.mark.costly

RECIPE = EncoderRecipe("BertConfig", "mean", max_seq_length=24)
MODEL = "org/encoder"
DEMO = Path(__file__).resolve().parents[2] / "models/demo"
QUESTION = [{"role": "user", "content": "What is the capital of France?"}]
TEXTS = [
    "The capital of France is Paris.",
    "Rome",
    "a cat is at 3 boats",
    " ".join(["paris"] * 22),
]


class Served(NamedTuple):
    """A mesh, and the model that it serves."""

    mesh: Mesh
    reference: Model
    folder: Path


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder = tmp_path_factory.mktemp("encoder")
    reference = make_encoder(folder, RECIPE)
    arguments = [
        "--model", str(DEMO), f"{MODEL}={folder}",
        "--model-alias", "gpt-4o=demo", f"split=demo:1,{MODEL}:1",
        "--prefill", "0", "--no-sample",
    ]  # fmt: skip
    with running_mesh(tmp_path_factory.mktemp("mesh"), *arguments) as mesh:
        yield Served(mesh, reference, folder)


def test_texts_are_embedded_as_by_transformers(served: Served) -> None:
    make: Any = transformers.PreTrainedTokenizerFast
    tokenizer = make(tokenizer_file=str(served.folder / "tokenizer.json"))
    client = served.mesh.client()
    answer = client.embeddings.create(model=MODEL, input=TEXTS)
    token_ids = [tokenizer(text).input_ids for text in TEXTS]
    assert token_ids[1] == [2, 11, 3]
    assert answer.usage.prompt_tokens == sum(map(len, token_ids))
    for item, ids in zip(answer.data, token_ids, strict=True):
        expected = reference_vector(served.reference, RECIPE, ids)
        torch.testing.assert_close(torch.tensor(item.embedding), expected, rtol=0, atol=5e-6)
        (alone,) = client.embeddings.create(model=MODEL, input=[ids]).data
        assert alone.embedding == item.embedding


def test_a_text_longer_than_the_model_embeds_is_400_and_names_the_length(served: Served) -> None:
    with pytest.raises(
        openai.BadRequestError,
        match=r"maximum context length is 24 tokens\. However, input has 25 tokens",
    ) as caught:
        served.mesh.client().embeddings.create(model=MODEL, input=" ".join(["paris"] * 23))
    assert caught.value.code == "context_length_exceeded"
    assert caught.value.param == "input"


def test_an_encoder_does_not_generate(served: Served) -> None:
    with pytest.raises(openai.BadRequestError, match="makes embeddings and does not generate"):
        served.mesh.client().completions.create(model=MODEL, prompt="The capital of France is")


def test_a_worker_that_does_not_begin_and_end_texts_alike_is_degraded_and_answers(
    served: Served, tmp_path: Path
) -> None:
    mesh, odd_folder = served.mesh, tmp_path / "odd"
    shutil.copytree(served.folder, odd_folder)
    tokenizer = json.loads((odd_folder / "tokenizer.json").read_text())
    tokenizer["post_processor"] = None
    (odd_folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    assert mesh.health()["degraded_workers"] == []
    expected = vectors(mesh)
    with running_odd_worker(mesh, odd_folder, MODEL):
        until(lambda: mesh.health()["decode_workers"] == 3, "the odd worker is reached", 60)
        (found,) = mesh.health()["degraded_workers"]
        assert (found["worker_id"], found["reason"]) == ("decode-odd", "tokenizer")
        gauge = "pagemesh:workers_degraded"
        labels = {"role": "decode", "reason": "tokenizer"}
        assert mesh.metric("router", gauge, model_name=MODEL, **labels) == 1
        assert mesh.metric("router", gauge, model_name="demo", **labels) == 0
        (entry,) = mesh.log("router", "worker_degraded")
        assert (entry["level"], entry["worker_id"]) == ("error", "decode-odd")
        assert vectors(mesh) == expected
    until(lambda: not mesh.health()["degraded_workers"], "the worker has left")


def test_every_name_is_listed_and_answers(served: Served) -> None:
    client = served.mesh.client()
    cards = {model.id: model for model in client.models.list()}
    assert list(cards) == ["demo", MODEL, "gpt-4o", "split"]
    assert client.models.retrieve(MODEL) == cards[MODEL]
    assert "Starting kvstore, router, decode-0, decode-1, gateway" in served.mesh.output
    assert f"pagemesh serves demo, {MODEL} at {served.mesh.url}" in served.mesh.output
    chat: Any = {"messages": QUESTION, "temperature": 0, "max_tokens": 12}
    own = client.chat.completions.create(model="demo", **chat)
    assert "Paris" in (own.choices[0].message.content or "")
    aliased = client.chat.completions.create(model="gpt-4o", **chat)
    assert (aliased.model, aliased.choices) == ("demo", own.choices)
    streamed = client.chat.completions.create(model="gpt-4o", stream=True, **chat)
    text = "".join(chunk.choices[0].delta.content or "" for chunk in streamed)
    assert text == own.choices[0].message.content
    with pytest.raises(openai.NotFoundError, match="the model 'gpt-5' does not exist") as caught:
        client.chat.completions.create(model="gpt-5", **chat)
    assert (caught.value.param, caught.value.code) == ("model", "model_not_found")


def test_a_session_is_answered_by_one_side_of_a_split(served: Served) -> None:
    def side(session: str) -> str:
        headers = {"x-session-id": session}
        embedded = served.mesh.client().embeddings.create(
            model="split", input=[2, 11, 3], extra_headers=headers
        )
        return embedded.model

    sides = {str(number): {side(str(number)) for _ in range(3)} for number in range(16)}
    assert all(len(found) == 1 for found in sides.values())
    assert set().union(*sides.values()) == {"demo", MODEL}


def vectors(mesh: Mesh) -> list[list[float]]:
    return [
        item.embedding for item in mesh.client().embeddings.create(model=MODEL, input=TEXTS).data
    ]
