"""Structured outputs are the same however the engine computes a request."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer

from pagemesh.config import ModelConfig
from pagemesh.engine.interface import EngineRequest, FinishReason
from pagemesh.models.loader import LoadedModel, load_model
from pagemesh.sampling.params import SamplingParams
from pagemesh.sampling.structured.outputs import StructuredOutputs
from tests.identity.engines import Courier, Peer, Tokens, generate, generate_twice
from tests.unit.scheduler.builders import FixedWay

MAX_TOKENS = 32
NUM_PROMPTS = 5

SCHEMA = {
    "type": "object",
    "properties": {
        "city": {"enum": ["Paris", "Rome", "Vienna"]},
        "people": {"type": "integer", "minimum": 1, "maximum": 999},
    },
    "required": ["city", "people"],
    "additionalProperties": False,
}
PATTERN = r"[A-Z][a-z]{2,6}( is [a-z]{2,5}){1,3}\."

KINDS: dict[str, dict[str, Any]] = {
    "json": {"structured_outputs": StructuredOutputs.of(json=SCHEMA, disable_any_whitespace=True)},
    "greedy json": {
        "temperature": 0.0,
        "structured_outputs": StructuredOutputs.of(json=SCHEMA, disable_any_whitespace=True),
    },
    "any object": {"structured_outputs": StructuredOutputs.of(json_object=True)},
    "regex": {"structured_outputs": StructuredOutputs.of(regex=PATTERN), "top_p": 0.9},
    "greedy regex": {
        "temperature": 0.0,
        "structured_outputs": StructuredOutputs.of(regex=PATTERN),
    },
    "choice": {
        "temperature": 3.0,
        "structured_outputs": StructuredOutputs.of(choice=["Paris", "Paris, France", "Oslo"]),
    },
    "grammar": {
        "structured_outputs": StructuredOutputs.of(grammar='root ::= "(" root ")" | [0-9]{1,3}'),
    },
    "late end": {"structured_outputs": StructuredOutputs.of(regex="a+"), "min_tokens": 7},
    "ignored end": {"structured_outputs": StructuredOutputs.of(regex="b{1,9}"), "ignore_eos": True},
    "penalised": {
        "structured_outputs": StructuredOutputs.of(regex="[a-d]+"),
        "logit_bias": {70: 9.0},
    },
    "free": {},
}


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> Iterator[None]:
    num_threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(num_threads)


@pytest.fixture(scope="module")
def model(demo_model: Path) -> LoadedModel:
    return load_model(ModelConfig(str(demo_model)))


@pytest.fixture(scope="module")
def tokenizer(demo_model: Path) -> Tokenizer:
    return Tokenizer.from_file(str(demo_model / "tokenizer.json"))


@pytest.fixture(scope="module")
def requests(demo_model: Path, tokenizer: Tokenizer) -> list[EngineRequest]:
    """Every kind with questions alone and as conversations that share prefixes."""
    lines = (demo_model / "questions.jsonl").read_text(encoding="utf-8").splitlines()
    turns = [
        f"<|im_start|>user\n{json.loads(line)['question']}<|im_end|>\n<|im_start|>assistant\n"
        for line in lines
    ]
    prompts = [
        tuple(tokenizer.encode(text).ids)
        for text in (turns[0], turns[1], *("".join(turns[:count]) for count in (3, 5, 9)))
    ]
    assert len(prompts) == NUM_PROMPTS
    return [
        EngineRequest(
            f"{name} {index}",
            prompt,
            replace(SamplingParams(max_tokens=MAX_TOKENS, seed=17 * index), **params),
        )
        for name, params in KINDS.items()
        for index, prompt in enumerate(prompts)
    ]


@pytest.fixture(scope="module")
def expected(model: LoadedModel, requests: list[EngineRequest]) -> Tokens:
    """Every request alone in an engine, without prefix cache, its prompt in one piece."""
    tokens: Tokens = {}
    for request in requests:
        tokens |= generate(Peer(model, num_blocks=64, enable_prefix_caching=False), [request])
    return tokens


def test_a_batch_of_many_kinds_gives_what_was_asked_for(
    model: LoadedModel, tokenizer: Tokenizer, requests: list[EngineRequest], expected: Tokens
) -> None:
    peer = Peer(model)
    assert generate(peer, requests) == expected
    texts: dict[str, list[str]] = {}
    for request in requests:
        kind = request.request_id.rpartition(" ")[0]
        if peer.ends[request.request_id].finish_reason is FinishReason.STOP:
            texts.setdefault(kind, []).append(tokenizer.decode(expected[request.request_id]))
    for text in (*texts["json"], *texts["greedy json"]):
        value = json.loads(text)
        assert value["city"] in ("Paris", "Rome", "Vienna")
        assert 1 <= value["people"] <= 999
    assert all(re.fullmatch(PATTERN, text) for text in texts["regex"] + texts["greedy regex"])
    assert {*texts["choice"]} <= {"Paris", "Paris, France", "Oslo"}
    assert all(re.fullmatch(r"\(*[0-9]{1,3}\)*", text) for text in texts["grammar"])
    assert all(re.fullmatch("a{7,}", text) for text in texts.get("late end", ()))
    assert set(texts["ignored end"]) == {"b" * 9}
    num_ended = {kind: len(ended) for kind, ended in texts.items()}
    assert num_ended["json"] == num_ended["choice"] == NUM_PROMPTS


@pytest.mark.parametrize("num_tokens", [16, 64])
def test_chunk_size_does_not_matter(
    model: LoadedModel, requests: list[EngineRequest], expected: Tokens, num_tokens: int
) -> None:
    assert generate(Peer(model, max_num_batched_tokens=num_tokens), requests) == expected


def test_a_warm_prefix_cache_does_not_matter(
    model: LoadedModel, requests: list[EngineRequest], expected: Tokens
) -> None:
    peer = Peer(model, max_num_batched_tokens=64)
    assert generate_twice(peer, requests) == (expected, expected)
    assert sum(end.num_cached_tokens for end in peer.ends.values()) > 1000


@pytest.mark.parametrize("way", ["swap", "recompute"])
def test_preemption_does_not_matter(
    model: LoadedModel, requests: list[EngineRequest], expected: Tokens, way: str
) -> None:
    peer = Peer(
        model,
        block_size=8,
        enable_prefix_caching=False,
        preempt_at=range(1, 10_000, 2),
        preemption=FixedWay(way == "swap"),
        num_swap_blocks=200,
    )
    assert generate(peer, requests) == expected
    assert peer.scheduler.load().num_preemptions >= 15


@pytest.mark.parametrize("stride", [1, 3])
def test_resuming_elsewhere_does_not_matter(
    model: LoadedModel, requests: list[EngineRequest], expected: Tokens, stride: int
) -> None:
    resumed = [
        replace(request, resume_token_ids=expected[request.request_id][: stride * index % 31])
        for index, request in enumerate(requests)
    ]
    tokens = generate(Peer(model), resumed)
    for request in resumed:
        known = request.resume_token_ids
        assert (*known, *tokens.get(request.request_id, ())) == expected[request.request_id]


@pytest.mark.parametrize(
    ("prefill_chunk", "num_blocks"), [(16, 1024), (512, 1024), (64, 48)], ids=str
)
def test_prefilling_on_another_engine_does_not_matter(
    model: LoadedModel,
    requests: list[EngineRequest],
    expected: Tokens,
    prefill_chunk: int,
    num_blocks: int,
) -> None:
    prefill = Peer(model, num_blocks=num_blocks, max_num_batched_tokens=prefill_chunk)
    courier = Courier(prefill, Peer(model, num_blocks=num_blocks), requests)
    assert courier.run() == expected
    assert courier.num_received_tokens > 500
    # The first tokens came from there, under the same constraints.
    assert all(prefill.tokens[name] == [tokens[0]] for name, tokens in expected.items())


def test_answers_to_one_prompt_are_those_of_separate_requests(
    model: LoadedModel, requests: list[EngineRequest], expected: Tokens
) -> None:
    followers = [
        replace(request, request_id=f"{request.request_id} again", fork_of=request.request_id)
        for request in requests
    ]
    tokens = generate(
        Peer(model), [one for pair in zip(requests, followers, strict=True) for one in pair]
    )
    for request in requests:
        assert tokens[request.request_id] == expected[request.request_id]
        assert tokens[f"{request.request_id} again"] == expected[request.request_id]
