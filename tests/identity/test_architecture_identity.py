"""Every architecture's KV may be shared, swapped, dropped and carried: one random model for each."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace
from typing import Final, NamedTuple

import pytest
import torch

from pagemesh.config import ModelConfig
from pagemesh.engine.interface import EngineRequest
from pagemesh.models.loader import LoadedModel, load_model
from pagemesh.sampling.params import SamplingParams
from tests.identity.checkpoints import ONE_OF_EACH, RECIPES, VOCAB_SIZE, make_checkpoint
from tests.identity.engines import Courier, Peer, Tokens, generate, generate_twice
from tests.unit.scheduler.builders import FixedWay

MAX_TOKENS: Final = 10
GREEDY: Final = SamplingParams(temperature=0.0, max_tokens=MAX_TOKENS, ignore_eos=True)
SAMPLED: Final = SamplingParams(temperature=1.2, max_tokens=MAX_TOKENS, ignore_eos=True)


class Subject(NamedTuple):
    """A model, requests for it and their tokens."""

    model: LoadedModel
    requests: list[EngineRequest]
    expected: Tokens
    """Each request alone in an engine without prefix cache, its prompt in one piece."""


def make_requests() -> list[EngineRequest]:
    """Prompts of 1 to 100 tokens, the longer ones with the same beginning."""
    drawn = tuple(random.Random(4).choices(range(VOCAB_SIZE), k=300))
    prompts = [drawn[:70], drawn[:40] + drawn[100:160], drawn[200:225], drawn[225:241], drawn[:1]]
    return [
        EngineRequest(f"{i} {sampling.temperature}", prompt, replace(sampling, seed=i))
        for i, prompt in enumerate(prompts)
        for sampling in (GREEDY, SAMPLED)
    ]


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> Iterator[None]:
    num_threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(num_threads)


@pytest.fixture(scope="module", params=ONE_OF_EACH)
def subject(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Subject:
    folder = tmp_path_factory.mktemp("model")
    make_checkpoint(folder, RECIPES[request.param])
    model = load_model(ModelConfig(str(folder)))
    requests = make_requests()
    expected: Tokens = {}
    for each in requests:
        expected |= generate(Peer(model, num_blocks=16, enable_prefix_caching=False), [each])
    assert len(set(expected.values())) == len(requests)
    return Subject(model, requests, expected)


def test_a_warm_prefix_cache_does_not_matter(subject: Subject) -> None:
    peer = Peer(subject.model, max_num_batched_tokens=48)
    assert generate_twice(peer, subject.requests) == (subject.expected, subject.expected)
    assert sum(end.num_cached_tokens for end in peer.ends.values()) > 300


def test_swapped_and_recomputed_kv_does_not_matter(subject: Subject) -> None:
    peer = Peer(
        subject.model,
        block_size=8,
        max_num_batched_tokens=48,
        preempt_at=range(2, 1000, 2),
        preemption=FixedWay(True, False),
        num_swap_blocks=100,
    )
    assert generate(peer, subject.requests) == subject.expected
    assert peer.scheduler.load().num_preemptions > 4


def test_kv_of_another_engine_does_not_matter(subject: Subject) -> None:
    prefill = Peer(subject.model, max_num_batched_tokens=24)
    courier = Courier(prefill, Peer(subject.model), subject.requests)
    assert courier.run() == subject.expected
    assert courier.num_received_tokens > 100
