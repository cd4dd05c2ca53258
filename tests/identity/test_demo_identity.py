"""The demo model gives the same answers to many requests of every kind however the engine computes them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import pytest

from pagemesh.config import ModelConfig
from pagemesh.core.request import EngineRequest
from pagemesh.engine import runner
from pagemesh.models.loader import LoadedModel, load_model
from tests.identity.answers import (
    Answers,
    answers_alone,
    answers_of,
    answers_together,
    answers_twice,
    assert_same,
    tokens_of,
    without_known,
)
from tests.identity.courier import Courier
from tests.identity.demo_requests import DEMO_REQUESTS
from tests.identity.engines import Peer
from tests.unit.scheduler.builders import FixedWay


class Case(NamedTuple):
    """The model, requests of one kind and their answers."""

    model: LoadedModel
    requests: list[EngineRequest]
    expected: Answers
    """Each request alone in an engine without prefix cache, its prompt in one piece."""


@pytest.fixture(scope="module", params=DEMO_REQUESTS)
def case(request: pytest.FixtureRequest, demo_model: Path) -> Case:
    model = load_model(ModelConfig(str(demo_model)))
    requests = DEMO_REQUESTS[request.param](model)
    expected = answers_alone(model, requests)
    assert len({answer.token_ids for answer in expected.values()}) > len(requests) / 2
    return Case(model, requests, expected)


@pytest.mark.product(most=2)
@pytest.mark.parametrize("num_tokens", [16, 64, 512])
def test_chunks_and_batches_do_not_matter(case: Case, num_tokens: int) -> None:
    peer = Peer(case.model, max_num_batched_tokens=num_tokens)
    assert_same(answers_together(peer, case.requests), case.expected)


@pytest.mark.product(most=2)
def test_a_warm_prefix_cache_does_not_matter(case: Case) -> None:
    peer = Peer(case.model, max_num_batched_tokens=64)
    for answers in answers_twice(peer, case.requests):
        assert_same(answers, case.expected)
    num_cached = sum(end.num_cached_tokens for end in peer.ends.values())
    assert num_cached > 0.7 * sum(len(request.prompt_token_ids) for request in case.requests)


@pytest.mark.product(most=2)
@pytest.mark.parametrize("caching", [True, False])
def test_preemption_for_want_of_blocks_does_not_matter(case: Case, caching: bool) -> None:
    peer = Peer(case.model, num_blocks=40, block_size=8, enable_prefix_caching=caching)
    assert_same(answers_together(peer, case.requests), case.expected)
    assert peer.scheduler.load().num_preemptions >= 3


@pytest.mark.product(most=2)
@pytest.mark.parametrize("way", ["swap", "recompute"])
def test_preemption_at_every_other_step_does_not_matter(case: Case, way: str) -> None:
    peer = Peer(
        case.model,
        block_size=8,
        enable_prefix_caching=False,
        preempt_at=range(1, 10_000, 2),
        preemption=FixedWay(way == "swap"),
        num_swap_blocks=200,
    )
    assert_same(answers_together(peer, case.requests), case.expected)
    assert peer.scheduler.load().num_preemptions >= 5


@pytest.mark.product(most=2)
@pytest.mark.parametrize("stride", [1, 3])
def test_resuming_elsewhere_does_not_matter(case: Case, stride: int) -> None:
    resumed = [
        replace(
            request,
            resume_token_ids=case.expected[request.request_id].token_ids[: stride * index % 31],
        )
        for index, request in enumerate(case.requests)
    ]
    answers = answers_together(Peer(case.model), resumed)
    assert_same(answers, without_known(case.expected, resumed))
    assert len(answers) == len(resumed)


@pytest.mark.product(most=2)
@pytest.mark.parametrize(("num_tokens", "num_blocks"), [(16, 1024), (512, 1024), (64, 48)], ids=str)
def test_prefilling_on_another_engine_does_not_matter(
    case: Case, num_tokens: int, num_blocks: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Layer by layer, while later ones are computed, however short the prompt is.
    monkeypatch.setattr(runner, "MIN_GROUP_BYTES", 1)
    prefill = Peer(case.model, num_blocks=num_blocks, max_num_batched_tokens=num_tokens)
    courier = Courier(prefill, Peer(case.model, num_blocks=num_blocks), case.requests)
    courier.run()
    assert_same(answers_of(courier.decode), case.expected)
    assert courier.num_received_tokens > 500
    assert courier.num_early > 100
    courier.check_first_tokens(tokens_of(case.expected))


@pytest.mark.product(most=2)
def test_answers_to_one_prompt_are_those_of_separate_requests(case: Case) -> None:
    forks = [
        replace(request, request_id=f"{request.request_id} again", fork_of=request.request_id)
        for request in case.requests
    ]
    mixed = [one for pair in zip(case.requests, forks, strict=True) for one in pair]
    answers = answers_together(Peer(case.model), mixed)
    again = {f"{name} again": answer for name, answer in case.expected.items()}
    assert_same(answers, {**case.expected, **again})
