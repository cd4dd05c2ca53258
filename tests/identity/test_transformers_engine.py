"""Models that transformers runs keep the promise of the engine: the same ids however they are computed."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import NamedTuple

import pytest
import torch

from pagemesh.config import ModelConfig
from pagemesh.engine.interface import EngineRequest
from pagemesh.models.loader import LoadedModel, load_model
from pagemesh.sampling.params import SamplingParams
from tests.identity.checkpoints import VOCAB_SIZE, make_checkpoint
from tests.identity.engines import Courier, Peer, Tokens, generate, generate_twice
from tests.identity.transformers_recipes import TRANSFORMERS_RECIPES

MAX_TOKENS = 14
# The first six share prefixes.
PREFIX_LENGTHS = (1, 9, 33, 64, 90, 118)
OTHER_LENGTHS = (5, 40, 80)
GREEDY = SamplingParams(temperature=0.0, max_tokens=MAX_TOKENS, ignore_eos=True)


class Case(NamedTuple):
    model: LoadedModel
    requests: list[EngineRequest]
    expected: Tokens


def make_requests() -> list[EngineRequest]:
    """Every prompt once greedily and once drawn by a seed of its own."""
    shared = random.Random(4).choices(range(VOCAB_SIZE), k=max(PREFIX_LENGTHS))
    prompts = [tuple(shared[:length]) for length in PREFIX_LENGTHS]
    prompts += [tuple(random.Random(n).choices(range(VOCAB_SIZE), k=n)) for n in OTHER_LENGTHS]
    requests = []
    for index, prompt in enumerate(prompts):
        sampled = SamplingParams(
            temperature=0.9, top_p=0.9, max_tokens=MAX_TOKENS, ignore_eos=True, seed=index
        )
        requests.append(EngineRequest(f"greedy {index}", prompt, GREEDY))
        requests.append(EngineRequest(f"sampled {index}", prompt, sampled))
    return requests


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> Iterator[None]:
    num_threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(num_threads)


@pytest.fixture(scope="module", params=["Cohere 2", "DeepSeek V3"])
def case(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Case:
    """Windows and layers without positions; values that are shorter than keys, and experts."""
    folder = tmp_path_factory.mktemp("model")
    make_checkpoint(folder, TRANSFORMERS_RECIPES[request.param])
    model = load_model(ModelConfig(str(folder)))
    requests = make_requests()
    expected: Tokens = {}
    for each in requests:
        expected |= generate(Peer(model, num_blocks=64, enable_prefix_caching=False), [each])
    assert len(set(expected.values())) == len(requests)
    return Case(model, requests, expected)


def test_a_warm_prefix_cache_does_not_matter(case: Case) -> None:
    peer = Peer(case.model, max_num_batched_tokens=32)
    cold, warm = generate_twice(peer, case.requests)
    assert (cold, warm) == (case.expected, case.expected)
    assert sum(end.num_cached_tokens for end in peer.ends.values()) > 700


def test_preemption_does_not_matter(case: Case) -> None:
    peer = Peer(case.model, num_blocks=24, block_size=8)
    assert generate(peer, case.requests) == case.expected
    assert peer.scheduler.load().num_preemptions >= 5


def test_prefilling_on_another_engine_does_not_matter(case: Case) -> None:
    courier = Courier(Peer(case.model, max_num_batched_tokens=32), Peer(case.model), case.requests)
    assert courier.run() == case.expected
    assert courier.num_received_tokens > 500
