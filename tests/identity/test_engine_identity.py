"""The same request gives the same token ids however the engine computes it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from pagemesh.config import ModelConfig
from pagemesh.engine.interface import EngineRequest
from pagemesh.models.loader import LoadedModel, load_model
from pagemesh.sampling.params import SamplingParams
from tests.identity.engines import Courier, Peer, Tokens, generate, generate_twice
from tests.identity.prompts import make_prompts

NUM_PROMPTS = 44
MAX_TOKENS = 16

GREEDY = SamplingParams(temperature=0.0, max_tokens=MAX_TOKENS, ignore_eos=True)
SAMPLED = SamplingParams(temperature=0.8, top_p=0.9, top_k=40, max_tokens=MAX_TOKENS)


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
def requests(demo_model: Path) -> list[EngineRequest]:
    prompts = make_prompts(demo_model)
    assert len(prompts) == NUM_PROMPTS
    assert (min(map(len, prompts)), max(map(len, prompts)) > 200) == (1, True)
    greedy = [EngineRequest(f"greedy {i}", p, GREEDY) for i, p in enumerate(prompts)]
    sampled = [
        EngineRequest(f"sampled {i}", p, replace(SAMPLED, seed=1000 + i))
        for i, p in enumerate(prompts)
    ]
    return [*greedy, *sampled]


@pytest.fixture(scope="module")
def expected(model: LoadedModel, requests: list[EngineRequest]) -> Tokens:
    """Every request alone in an engine, without prefix cache, its prompt in one piece."""
    tokens: Tokens = {}
    for request in requests:
        tokens |= generate(Peer(model, num_blocks=64, enable_prefix_caching=False), [request])
    assert len({tokens[r.request_id] for r in requests}) > NUM_PROMPTS
    return tokens


@pytest.mark.parametrize("num_tokens", [16, 64, 512])
def test_chunk_size_does_not_matter(
    model: LoadedModel, requests: list[EngineRequest], expected: Tokens, num_tokens: int
) -> None:
    peer = Peer(model, max_num_batched_tokens=num_tokens)
    assert generate(peer, requests) == expected


def test_a_warm_prefix_cache_does_not_matter(
    model: LoadedModel, requests: list[EngineRequest], expected: Tokens
) -> None:
    peer = Peer(model, max_num_batched_tokens=64)
    cold, warm = generate_twice(peer, requests)
    assert (cold, warm) == (expected, expected)
    num_cached = sum(end.num_cached_tokens for end in peer.ends.values())
    num_prompt = sum(len(request.prompt_token_ids) for request in requests)
    assert num_cached > 0.8 * num_prompt


@pytest.mark.parametrize("caching", [True, False])
def test_preemption_does_not_matter(
    model: LoadedModel, requests: list[EngineRequest], expected: Tokens, caching: bool
) -> None:
    peer = Peer(model, num_blocks=40, block_size=8, enable_prefix_caching=caching)
    assert generate(peer, requests) == expected
    assert peer.scheduler.load().num_preemptions >= 10


def test_resuming_elsewhere_does_not_matter(
    model: LoadedModel, requests: list[EngineRequest], expected: Tokens
) -> None:
    resumed = [
        EngineRequest(
            request.request_id,
            request.prompt_token_ids,
            request.sampling,
            resume_token_ids=expected[request.request_id][: i % 9],
        )
        for i, request in enumerate(requests)
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
    assert courier.num_received_tokens > 1000


def test_greedy_tokens_are_those_of_transformers(
    model: LoadedModel, demo_model: Path, requests: list[EngineRequest], expected: Tokens
) -> None:
    from transformers import AutoModelForCausalLM

    reference = AutoModelForCausalLM.from_pretrained(demo_model, dtype=model.dtype)
    for request in requests[:NUM_PROMPTS:9]:
        # One forward pass over the known tokens each: no cache of its own, no rules about stop tokens.
        token_ids = list(request.prompt_token_ids)
        for _ in range(MAX_TOKENS):
            with torch.inference_mode():
                logits = reference(torch.tensor([token_ids])).logits
            token_ids.append(int(logits[0, -1].argmax()))
        assert tuple(token_ids[-MAX_TOKENS:]) == expected[request.request_id]
