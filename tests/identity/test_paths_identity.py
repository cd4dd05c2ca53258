"""The same tokens whatever the scheduler does with a request's KV: share, copy, evict, swap, drop.

Another model is another name in `SUBJECTS`, another way of sampling another entry in `SAMPLINGS`: every
test runs for all of them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Final, NamedTuple

import pytest
import torch

from pagemesh.config import ModelConfig
from pagemesh.engine.interface import EngineRequest
from pagemesh.models.loader import LoadedModel, load_model
from pagemesh.sampling.params import SamplingParams
from tests.identity.checkpoints import ONE_OF_EACH, RECIPES, VOCAB_SIZE, make_checkpoint
from tests.identity.engines import Peer, Tokens, generate, generate_twice
from tests.identity.prompts import make_prompts
from tests.unit.scheduler.builders import FixedWay

MAX_TOKENS: Final = 12
MAX_PROMPT: Final = 100
"""Of the random models, whose context is short."""
NUM_ANSWERS: Final = 3
SEED: Final = 500

SUBJECTS: Final = ("demo", *ONE_OF_EACH)

SAMPLINGS: Final = {
    "greedy": SamplingParams(temperature=0.0),
    "sampled": SamplingParams(temperature=1.7, top_p=0.98, top_k=200),
    "penalised": SamplingParams(
        temperature=1.5, repetition_penalty=1.2, presence_penalty=0.4, frequency_penalty=0.3
    ),
}


class Subject(NamedTuple):
    """A model, requests for it and their tokens."""

    model: LoadedModel

    requests: list[EngineRequest]
    """For each way of sampling and each prompt NUM_ANSWERS, which differ in their seeds."""

    expected: Tokens
    """Each request alone in an engine without prefix cache, its prompt in one piece."""

    @property
    def mixture(self) -> list[EngineRequest]:
        """One request for each prompt, sampled in different ways, the longest prompts last."""
        firsts = self.requests[::NUM_ANSWERS]
        num_prompts = len(firsts) // len(SAMPLINGS)
        chosen = [firsts[i % len(SAMPLINGS) * num_prompts + i] for i in range(num_prompts)]
        return sorted(chosen, key=lambda request: len(request.prompt_token_ids))

    def check(self, tokens: Tokens) -> None:
        """Whatever was generated is what was expected."""
        assert tokens == {name: self.expected[name] for name in tokens}


def make_requests(prompts: list[tuple[int, ...]]) -> list[EngineRequest]:
    return [
        EngineRequest(
            f"{name} {i} {answer}",
            prompt,
            replace(sampling, seed=SEED + answer, max_tokens=MAX_TOKENS, ignore_eos=True),
        )
        for name, sampling in SAMPLINGS.items()
        for i, prompt in enumerate(prompts)
        for answer in range(NUM_ANSWERS)
    ]


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> Iterator[None]:
    num_threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(num_threads)


@pytest.fixture(scope="module", params=SUBJECTS)
def subject(
    request: pytest.FixtureRequest, demo_model: Path, tmp_path_factory: pytest.TempPathFactory
) -> Subject:
    prompts = make_prompts(demo_model)
    # Two conversations with the same beginning, two questions, one token, and a whole block of 16.
    chosen = [prompts[24], prompts[27], prompts[0], prompts[7], prompts[40], prompts[43]]
    assert [len(prompt) for prompt in chosen[4:]] == [1, 16]
    folder = demo_model
    if request.param != "demo":
        folder = tmp_path_factory.mktemp("model")
        make_checkpoint(folder, RECIPES[request.param])
        chosen = [tuple(i % VOCAB_SIZE for i in prompt[:MAX_PROMPT]) for prompt in chosen]
    model = load_model(ModelConfig(str(folder)))
    requests = make_requests(chosen)
    expected: Tokens = {}
    for each in requests:
        expected |= generate(Peer(model, num_blocks=64, enable_prefix_caching=False), [each])
    assert len(set(expected.values())) > len(requests) / 2
    return Subject(model, requests, expected)


@pytest.mark.parametrize("block_size", [8, 16, 32])
def test_block_sizes_and_a_warm_cache_do_not_matter(subject: Subject, block_size: int) -> None:
    peer = Peer(subject.model, block_size=block_size, max_num_batched_tokens=64)
    cold, warm = generate_twice(peer, subject.requests)
    subject.check(cold)
    subject.check(warm)
    assert len(warm) == len(subject.requests)


@pytest.mark.parametrize("block_size", [8, 16, 32])
def test_a_partly_evicted_cache_does_not_matter(subject: Subject, block_size: int) -> None:
    requests = subject.mixture
    # Just enough for the longest: what comes after it in the second round takes its last blocks.
    num_tokens = len(requests[-1].prompt_token_ids) + MAX_TOKENS
    peer = Peer(subject.model, block_size=block_size, num_blocks=-(-num_tokens // block_size))
    for tokens in generate_twice(peer, requests):
        subject.check(tokens)
    num_cached = sum(end.num_cached_tokens for end in peer.ends.values())
    assert 0 < num_cached < 0.9 * sum(len(request.prompt_token_ids) for request in requests)


@pytest.mark.parametrize("caching", [True, False])
@pytest.mark.parametrize("block_size", [8, 16, 32])
def test_answers_to_one_prompt_are_those_of_separate_requests(
    subject: Subject, block_size: int, caching: bool
) -> None:
    peer = Peer(
        subject.model,
        block_size=block_size,
        max_num_batched_tokens=48,
        enable_prefix_caching=caching,
    )
    forks = [
        request
        if index % NUM_ANSWERS == 0
        else replace(request, fork_of=subject.requests[index - index % NUM_ANSWERS].request_id)
        for index, request in enumerate(subject.requests)
    ]
    subject.check(generate(peer, forks))
    num_shared = sum(
        peer.ends[fork.request_id].num_cached_tokens == len(fork.prompt_token_ids) - 1
        for fork in forks
        if fork.fork_of is not None
    )
    # The others came to a seat when their leader was over.
    assert num_shared > len(forks) / 4


@pytest.mark.parametrize("way", ["swap", "recompute"])
def test_preemption_at_any_step_does_not_matter(subject: Subject, way: str) -> None:
    # The longest prompt comes last: its chunks are interrupted as well.
    requests = subject.mixture[1:]
    make_peer = partial(
        Peer,
        subject.model,
        block_size=8,
        max_num_batched_tokens=48,
        enable_prefix_caching=False,
        preemption=FixedWay(way == "swap"),
        num_swap_blocks=200,
    )
    undisturbed = make_peer()
    subject.check(generate(undisturbed, requests))
    num_steps = undisturbed.scheduler.num_batches
    assert num_steps > MAX_TOKENS
    for step in range(1, num_steps):
        peer = make_peer(preempt_at={step})
        subject.check(generate(peer, requests))
        assert peer.scheduler.load().num_preemptions == 1, step


@pytest.mark.parametrize("block_size", [8, 16, 32])
def test_preemptions_of_either_kind_among_forks_do_not_matter(
    subject: Subject, block_size: int
) -> None:
    forks = [
        replace(request, fork_of=subject.requests[index - index % NUM_ANSWERS].request_id)
        for index, request in enumerate(subject.requests)
    ]
    longest = max(len(request.prompt_token_ids) for request in forks) + MAX_TOKENS
    peer = Peer(
        subject.model,
        block_size=block_size,
        num_blocks=-(-longest // block_size) * 2,
        preempt_at=range(2, 10_000, 4),
        preemption=FixedWay(True, False, True),
        num_swap_blocks=100,
    )
    subject.check(generate(peer, forks))
    assert peer.scheduler.load().num_preemptions > 20
