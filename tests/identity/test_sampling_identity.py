"""Sampling parameters and log probabilities mean the same however the engine computes a request."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from tokenizers import Tokenizer

from pagemesh.config import ModelConfig
from pagemesh.engine.interface import EngineRequest
from pagemesh.models.loader import LoadedModel, load_model
from pagemesh.sampling.logprobs import TokenLogprobs
from pagemesh.sampling.params import SamplingParams
from tests.identity.engines import Courier, Peer, generate, generate_twice
from tests.unit.scheduler.builders import FixedWay

MAX_TOKENS = 14
BASE = SamplingParams(max_tokens=MAX_TOKENS, ignore_eos=True)

TOLERANCE = 2e-4
"""Of log probabilities in float32: rounding moves logits of up to 30 by some 1e-5."""

KINDS: dict[str, dict[str, Any]] = {
    "greedy with repetition penalty": {"temperature": 0.0, "repetition_penalty": 1.4},
    "greedy with output penalties": {
        "temperature": 0.0,
        "presence_penalty": 2.0,
        "frequency_penalty": 1.5,
    },
    "sampled with all penalties": {
        "temperature": 0.9,
        "top_k": 50,
        "repetition_penalty": 1.2,
        "presence_penalty": -0.5,
        "frequency_penalty": 0.4,
    },
    "sampled with min-p": {"temperature": 1.5, "min_p": 0.1, "top_p": 0.95},
    "sampled with biases": {"temperature": 0.8, "logit_bias": {300: 6.0, 301: 6.0, 302: -100.0}},
    "greedy with bad words": {"temperature": 0.0, "bad_words_token_ids": ()},
    "few tokens allowed": {"temperature": 1.0, "allowed_token_ids": tuple(range(300, 340))},
    "stop tokens suppressed": {"temperature": 1.0, "min_tokens": 9, "ignore_eos": False},
}


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


class Answer(NamedTuple):
    """What an engine said to one request."""

    token_ids: tuple[int, ...]
    logprobs: tuple[TokenLogprobs, ...]
    prompt_logprobs: tuple[TokenLogprobs, ...]


Answers = dict[str, Answer]


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
def plain(model: LoadedModel, requests: list[EngineRequest]) -> dict[str, tuple[int, ...]]:
    """Tokens of every request without its kind's parameters."""
    neutral = [replace(r, sampling=replace(r.sampling, **NEUTRAL)) for r in requests]
    return generate(Peer(model), neutral)


@pytest.fixture(scope="module")
def requests(model: LoadedModel, demo_model: Path) -> list[EngineRequest]:
    """Every kind with prompts of 1 to some hundred tokens, half of which share a prefix."""
    tokenizer = Tokenizer.from_file(str(demo_model / "tokenizer.json"))
    text = (demo_model / "questions.jsonl").read_text(encoding="utf-8")
    token_ids = tuple(tokenizer.encode(text[:4000]).ids)
    lengths = random.Random(7)
    requests = []
    for number, (name, params) in enumerate(KINDS.items()):
        for index, length in enumerate((1, 16, lengths.randint(20, 60), lengths.randint(90, 230))):
            start = 0 if index % 2 else 11 * number
            prompt = token_ids[start : start + length]
            sampling = replace(
                BASE,
                seed=100 * number + index,
                logprobs=index,
                **with_bad_words(model, prompt, params),
            )
            requests.append(EngineRequest(f"{name} {index}", prompt, sampling))
    return requests


def with_bad_words(
    model: LoadedModel, prompt: tuple[int, ...], params: dict[str, Any]
) -> dict[str, Any]:
    """Forbid what the model would say: its second token, and its fifth behind its fourth."""
    if "bad_words_token_ids" not in params:
        return params
    greedy = EngineRequest("r", prompt, replace(BASE, temperature=0.0))
    tokens = generate(Peer(model), [greedy])["r"]
    return params | {"bad_words_token_ids": ((tokens[1],), tokens[3:5])}


@pytest.fixture(scope="module")
def expected(model: LoadedModel, requests: list[EngineRequest]) -> Answers:
    """Every request alone in an engine, without prefix cache, its prompt in one piece."""
    answers: Answers = {}
    for request in requests:
        peer = Peer(model, num_blocks=64, enable_prefix_caching=False)
        generate(peer, [request])
        answers |= answers_of(peer)
    return answers


def answers_of(peer: Peer) -> Answers:
    return {
        request_id: Answer(
            tuple(peer.tokens[request_id]),
            tuple(peer.logprobs[request_id]),
            tuple(peer.prompt_logprobs[request_id]),
        )
        for request_id in peer.ends
    }


def assert_same(answers: Answers, expected: Answers) -> None:
    assert {name: answer.token_ids for name, answer in answers.items()} == {
        name: answer.token_ids for name, answer in expected.items()
    }
    for name, answer in answers.items():
        assert_same_scores(answer.logprobs, expected[name].logprobs)
        assert_same_scores(answer.prompt_logprobs, expected[name].prompt_logprobs)


def assert_same_scores(scores: Sequence[TokenLogprobs], expected: Sequence[TokenLogprobs]) -> None:
    for score, other in zip(scores, expected, strict=True):
        assert score.token_id == other.token_id
        assert score.logprob == pytest.approx(other.logprob, abs=TOLERANCE)
        assert score.top_logprobs == pytest.approx(other.top_logprobs, abs=TOLERANCE)
        # Tokens whose log probabilities are nearly equal may change places.
        gaps = [a - b for a, b in zip(other.top_logprobs, other.top_logprobs[1:], strict=False)]
        if all(gap > 2 * TOLERANCE for gap in gaps[:-1]):
            assert score.top_token_ids[:-1] == other.top_token_ids[:-1]


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
    for name in KINDS:
        changed = [expected[f"{name} {i}"].token_ids != plain[f"{name} {i}"] for i in range(4)]
        assert any(changed), name


@pytest.mark.parametrize("num_tokens", [16, 64, 512])
def test_chunks_and_batches_do_not_matter(
    model: LoadedModel, requests: list[EngineRequest], expected: Answers, num_tokens: int
) -> None:
    peer = Peer(model, max_num_batched_tokens=num_tokens)
    generate(peer, requests)
    assert_same(answers_of(peer), expected)


def test_a_warm_prefix_cache_does_not_matter(
    model: LoadedModel, requests: list[EngineRequest], expected: Answers
) -> None:
    peer = Peer(model, max_num_batched_tokens=64)
    generate_twice(peer, requests)
    assert_same(answers_of(peer), expected)
    assert sum(end.num_cached_tokens for end in peer.ends.values()) > 1000


@pytest.mark.parametrize("caching", [True, False])
def test_preemption_does_not_matter(
    model: LoadedModel, requests: list[EngineRequest], expected: Answers, caching: bool
) -> None:
    peer = Peer(model, num_blocks=32, block_size=8, enable_prefix_caching=caching)
    generate(peer, requests)
    assert_same(answers_of(peer), expected)
    assert peer.scheduler.load().num_preemptions >= 3


def test_resuming_elsewhere_does_not_matter(
    model: LoadedModel, requests: list[EngineRequest], expected: Answers
) -> None:
    resumed = [
        replace(request, resume_token_ids=expected[request.request_id].token_ids[: i % 9])
        for i, request in enumerate(requests)
    ]
    peer = Peer(model)
    generate(peer, resumed)
    answers = answers_of(peer)
    for request in resumed:
        known = len(request.resume_token_ids)
        tokens, logprobs, _ = expected[request.request_id]
        rest = Answer(tokens[known:], logprobs[known:], ())
        assert_same({"rest": answers[request.request_id]}, {"rest": rest})


@pytest.mark.parametrize(("prefill_chunk", "num_blocks"), [(16, 1024), (64, 48)], ids=str)
def test_prefilling_on_another_engine_does_not_matter(
    model: LoadedModel,
    requests: list[EngineRequest],
    expected: Answers,
    prefill_chunk: int,
    num_blocks: int,
) -> None:
    prefill = Peer(model, num_blocks=num_blocks, max_num_batched_tokens=prefill_chunk)
    courier = Courier(prefill, Peer(model, num_blocks=num_blocks), requests)
    courier.run()
    assert_same(answers_of(courier.decode), expected)
    assert courier.num_received_tokens > 500


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
    from transformers import AutoModelForCausalLM

    reference = AutoModelForCausalLM.from_pretrained(demo_model, dtype=model.dtype)
    peer = Peer(model, **settings)
    (generate, generate_twice)[times - 1](peer, scored)
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
