"""Sampling parameters and log probabilities are what they say, and what transformers makes of them."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from pagemesh.config import ModelConfig
from pagemesh.core.request import EngineRequest
from pagemesh.models.loader import LoadedModel, load_model
from tests.identity.answers import (
    Answers,
    answers_of,
    answers_together,
    answers_twice,
    assert_same_scores,
)
from tests.identity.checkpoints import load_reference
from tests.identity.demo_requests import SAMPLING_KINDS, sampling_requests
from tests.identity.engines import Peer, generate
from tests.unit.scheduler.builders import FixedWay

TOLERANCE = 2e-4
"""Between float32 logits of two implementations, of up to 30, as log probabilities."""

NEUTRAL: dict[str, Any] = {
    "min_p": 0.0,
    "repetition_penalty": 1.0,
    "presence_penalty": 0.0,
    "frequency_penalty": 0.0,
    "logit_bias": {},
    "bad_words_token_ids": (),
    "allowed_token_ids": None,
    "min_tokens": 0,
}


@pytest.fixture(scope="module")
def model(demo_model: Path) -> LoadedModel:
    return load_model(ModelConfig(str(demo_model)))


@pytest.fixture(scope="module")
def requests(model: LoadedModel) -> list[EngineRequest]:
    return sampling_requests(model)


@pytest.fixture(scope="module")
def plain(model: LoadedModel, requests: list[EngineRequest]) -> dict[str, tuple[int, ...]]:
    """Tokens of every request without its kind's parameters."""
    neutral = [replace(r, sampling=replace(r.sampling, **NEUTRAL)) for r in requests]
    return generate(Peer(model), neutral)


@pytest.fixture(scope="module")
def expected(model: LoadedModel, requests: list[EngineRequest]) -> Answers:
    return answers_together(Peer(model), requests)


def test_the_parameters_do_what_they_say(
    requests: list[EngineRequest], plain: dict[str, tuple[int, ...]], expected: Answers
) -> None:
    for request in requests:
        tokens, logprobs, _ = expected[request.request_id]
        assert [score.token_id for score in logprobs] == list(tokens)
        assert {len(score.top_token_ids) for score in logprobs} == {request.sampling.logprobs}
        if request.sampling.allowed_token_ids is not None:
            assert set(tokens) <= set(request.sampling.allowed_token_ids)
        for word in request.sampling.bad_words_token_ids:
            width = len(word)
            assert word not in {tokens[i : i + width] for i in range(len(tokens))}
    for name in SAMPLING_KINDS:
        changed = [expected[f"{name} {i}"].token_ids != plain[f"{name} {i}"] for i in range(4)]
        assert any(changed), name


def test_the_cumulative_log_probability_is_the_sum_of_the_tokens(
    model: LoadedModel, requests: list[EngineRequest]
) -> None:
    peer = Peer(model)
    generate(peer, requests)
    for request_id, end in peer.ends.items():
        total = math.fsum(score.logprob for score in peer.logprobs[request_id])
        assert end.cumulative_logprob == pytest.approx(total, abs=1e-9)


@pytest.fixture(scope="module")
def scored(requests: list[EngineRequest]) -> list[EngineRequest]:
    """The requests, which now ask for log probabilities of their prompts too."""
    return [
        replace(request, sampling=replace(request.sampling, prompt_logprobs=i % 3))
        for i, request in enumerate(requests)
    ]


@pytest.mark.product(most=2)
@pytest.mark.parametrize(
    ("settings", "times"),
    [
        pytest.param({"max_num_batched_tokens": 16}, 1, id="chunks of 16"),
        pytest.param({"max_num_batched_tokens": 512}, 1, id="chunks of 512"),
        pytest.param({}, 2, id="warm"),
        pytest.param({"num_blocks": 32, "block_size": 8}, 1, id="preempted"),
        pytest.param(
            {"num_blocks": 32, "block_size": 8, "max_num_batched_tokens": 24},
            1,
            id="preempted within prompts",
        ),
        pytest.param(
            {
                "preempt_at": range(1, 1000, 2),
                "preemption": FixedWay(True, True, False),
                "num_swap_blocks": 200,
                "max_num_batched_tokens": 24,
            },
            1,
            id="swapped",
        ),
    ],
)
def test_log_probabilities_of_prompts_are_those_of_transformers(
    model: LoadedModel,
    demo_model: Path,
    scored: list[EngineRequest],
    expected: Answers,
    settings: dict[str, Any],
    times: int,
) -> None:
    reference = load_reference(demo_model)
    peer = Peer(model, **settings)
    (answers_together, answers_twice)[times - 1](peer, scored)
    is_preempted = "num_blocks" in settings or "preempt_at" in settings
    assert (peer.scheduler.load().num_preemptions > 0) == is_preempted
    for request in scored:
        answer = answers_of(peer)[request.request_id]
        assert answer.token_ids == expected[request.request_id].token_ids
        assert_same_scores(answer.logprobs, expected[request.request_id].logprobs)
        with torch.inference_mode():
            logits = reference(torch.tensor([request.prompt_token_ids])).logits[0]
        logprobs = logits.log_softmax(-1)
        wanted = request.prompt_token_ids[1:]
        assert tuple(score.token_id for score in answer.prompt_logprobs) == wanted
        for row, score in zip(logprobs, answer.prompt_logprobs, strict=False):
            assert score.logprob == pytest.approx(float(row[score.token_id]), abs=TOLERANCE)
            top = row.topk(len(score.top_token_ids)).values.tolist()
            assert score.top_logprobs == pytest.approx(top, abs=TOLERANCE)
