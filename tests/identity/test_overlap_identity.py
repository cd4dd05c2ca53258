"""The same answers when steps are planned and launched before the tokens of the step in front are known."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from pagemesh.config import ModelConfig
from pagemesh.models.loader import load_model
from tests.identity.answers import answers_of, answers_together, answers_twice, assert_same
from tests.identity.courier import Courier
from tests.identity.demo_requests import sampling_requests
from tests.identity.engines import Peer
from tests.identity.subjects import MAX_TOKENS, Subject, make_subject
from tests.support.products import drawn
from tests.unit.scheduler.builders import FixedWay

pytestmark = pytest.mark.costly


@pytest.fixture(scope="module", params=drawn("overlap", ["demo", "Cohere 2"], ["demo"], 0))
def subject(
    request: pytest.FixtureRequest, demo_model: Path, tmp_path_factory: pytest.TempPathFactory
) -> Subject:
    """Of pagemesh's own decoder, and of one that transformers runs: what overlaps is the same for all."""
    return make_subject(request.param, demo_model, tmp_path_factory.mktemp("model"))


@pytest.mark.product(most=1)
@pytest.mark.parametrize("num_tokens", [16, 64], ids=["one block", "several chunks"])
def test_steps_in_flight_and_a_warm_cache_do_not_matter(subject: Subject, num_tokens: int) -> None:
    peer = Peer(subject.model, max_num_batched_tokens=num_tokens, overlaps=True)
    for answers in answers_twice(peer, subject.requests):
        subject.check(answers)
    assert peer.scheduler.num_unknown_tokens > 100
    assert sum(end.num_cached_tokens for end in peer.ends.values()) > 1000


@pytest.mark.product(most=1)
@pytest.mark.parametrize("block_size", [8, 32])
def test_preemptions_among_forks_with_steps_in_flight_do_not_matter(
    subject: Subject, block_size: int
) -> None:
    forks = subject.forks
    longest = max(len(request.prompt_token_ids) for request in forks) + MAX_TOKENS
    peer = Peer(
        subject.model,
        block_size=block_size,
        num_blocks=-(-longest // block_size) * 2,
        preempt_at=range(2, 10_000, 4),
        preemption=FixedWay(True, False, True),
        num_swap_blocks=100,
        overlaps=True,
    )
    subject.check(answers_together(peer, forks))
    assert peer.scheduler.load().num_preemptions > 20


@pytest.mark.product(most=1)
@pytest.mark.parametrize("way", ["swap", "recompute"])
def test_preemption_at_any_step_with_steps_in_flight_does_not_matter(
    subject: Subject, way: str
) -> None:
    requests = subject.mixture("json")[-4:]
    make_peer = partial(
        Peer,
        subject.model,
        block_size=8,
        max_num_batched_tokens=48,
        enable_prefix_caching=False,
        preemption=FixedWay(way == "swap"),
        num_swap_blocks=200,
        overlaps=True,
    )
    undisturbed = make_peer()
    subject.check(answers_together(undisturbed, requests))
    num_preemptions = 0
    num_steps = undisturbed.scheduler.num_batches
    for step in range(1, num_steps):
        peer = make_peer(preempt_at={step})
        subject.check(answers_together(peer, requests))
        num_preemptions += peer.scheduler.load().num_preemptions
    # In the last steps the request may have ended when the step in flight has completed.
    assert num_steps - 4 < num_preemptions < num_steps


@pytest.mark.product(most=1)
@pytest.mark.parametrize(("num_tokens", "num_blocks"), [(16, 1024), (64, 48)], ids=str)
def test_prefilling_on_another_engine_with_steps_in_flight_does_not_matter(
    subject: Subject, num_tokens: int, num_blocks: int
) -> None:
    requests = [
        replace(request, sampling=replace(request.sampling, prompt_logprobs=None))
        for request in subject.requests
    ]
    courier = Courier(
        Peer(
            subject.model,
            num_blocks=num_blocks,
            max_num_batched_tokens=num_tokens,
            overlaps=True,
        ),
        Peer(subject.model, num_blocks=num_blocks, overlaps=True),
        requests,
    )
    courier.run()
    expected = {
        name: answer._replace(prompt_logprobs=()) for name, answer in subject.expected.items()
    }
    assert_same(answers_of(courier.decode), expected)
    assert courier.num_received_tokens > 500


def test_every_way_of_sampling_is_the_same_with_steps_in_flight(demo_model: Path) -> None:
    model = load_model(ModelConfig(str(demo_model)))
    requests = sampling_requests(model)
    overlapped = Peer(model, overlaps=True)
    answers = answers_together(overlapped, requests)
    assert_same(answers, answers_together(Peer(model), requests))
    assert overlapped.scheduler.num_unknown_tokens > 100
