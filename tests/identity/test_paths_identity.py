"""The same answers whatever an engine does with a request's KV: share, copy, evict, swap, drop, receive."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from pagemesh.core.request import FinishReason
from pagemesh.engine import runner
from tests.identity.answers import (
    answers_of,
    answers_together,
    answers_twice,
    assert_same,
    tokens_of,
    without_known,
)
from tests.identity.courier import Courier
from tests.identity.engines import Peer
from tests.identity.subjects import MAX_TOKENS, SAMPLINGS, SUBJECTS, Subject, make_subject
from tests.support.products import drawn
from tests.unit.scheduler.builders import FixedWay


@pytest.fixture(scope="module", params=drawn("subjects", SUBJECTS, [], 1))
def subject(
    request: pytest.FixtureRequest, demo_model: Path, tmp_path_factory: pytest.TempPathFactory
) -> Subject:
    subject = make_subject(request.param, demo_model, tmp_path_factory.mktemp("model"))
    distinct = {answer.token_ids for answer in subject.expected.values()}
    assert len(distinct) > len(subject.requests) / 3
    return subject


def test_structured_answers_are_what_was_asked_for(subject: Subject) -> None:
    peer = Peer(subject.model)
    subject.check(answers_together(peer, subject.requests))
    texts: dict[str, set[str]] = {name: set() for name in SAMPLINGS}
    for request_id, end in peer.ends.items():
        if end.finish_reason is FinishReason.STOP:
            text = subject.tokenizer.decode(peer.tokens[request_id])
            texts[request_id.partition(" ")[0]].add(text)
    for text in texts["json"]:
        assert -9999 <= json.loads(text)["n"] <= 9999
    assert all(re.fullmatch("[a-f]{1,4}(,[0-9]{1,3}){1,3}", text) for text in texts["regex"])
    assert texts["choice"] <= {"Paris", "Paris, 12", "Oslo", "no", "null"}
    assert all(re.fullmatch(r"\(*[0-9]{1,3}\)*", text) for text in texts["grammar"])
    assert [name for name in ("json", "regex", "choice", "grammar") if not texts[name]] == []


@pytest.mark.product
@pytest.mark.parametrize("num_tokens", [16, 512], ids=["one block", "whole prompts"])
def test_chunk_size_does_not_matter(subject: Subject, num_tokens: int) -> None:
    peer = Peer(subject.model, max_num_batched_tokens=num_tokens, enable_prefix_caching=False)
    subject.check(answers_together(peer, subject.requests))


@pytest.mark.product
@pytest.mark.parametrize("block_size", [8, 16, 32])
def test_block_sizes_and_a_warm_cache_do_not_matter(subject: Subject, block_size: int) -> None:
    peer = Peer(subject.model, block_size=block_size, max_num_batched_tokens=64)
    for answers in answers_twice(peer, subject.requests):
        subject.check(answers)
    assert len(peer.ends) == len(subject.requests)
    assert sum(end.num_cached_tokens for end in peer.ends.values()) > 1000


@pytest.mark.product
@pytest.mark.parametrize("block_size", [8, 16, 32])
def test_a_partly_evicted_cache_does_not_matter(subject: Subject, block_size: int) -> None:
    requests = subject.mixture("sampled")
    # Just enough for the longest: what comes after it in the second round takes its last blocks.
    num_tokens = len(requests[-1].prompt_token_ids) + MAX_TOKENS
    peer = Peer(subject.model, block_size=block_size, num_blocks=-(-num_tokens // block_size))
    for answers in answers_twice(peer, requests):
        subject.check(answers)
    num_cached = sum(end.num_cached_tokens for end in peer.ends.values())
    assert 0 < num_cached < 0.9 * sum(len(request.prompt_token_ids) for request in requests)


@pytest.mark.product
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
    forks = subject.forks
    subject.check(answers_together(peer, forks))
    num_shared = sum(
        peer.ends[fork.request_id].num_cached_tokens > 0 for fork in forks if fork.fork_of
    )
    # Of prompts of one token and of one block nothing can be shared, and some forks come when their
    # leader was over.
    assert num_shared > len(forks) / 4


@pytest.mark.product(most=2)
@pytest.mark.parametrize("last", ["sampled", "json"])
@pytest.mark.parametrize("way", ["swap", "recompute"])
def test_preemption_at_any_step_does_not_matter(subject: Subject, way: str, last: str) -> None:
    # The longest prompt comes last: its chunks are interrupted as well.
    requests = subject.mixture(last)[-4:]
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
    subject.check(answers_together(undisturbed, requests))
    num_steps = undisturbed.scheduler.num_batches
    assert num_steps > MAX_TOKENS
    for step in range(1, num_steps):
        peer = make_peer(preempt_at={step})
        subject.check(answers_together(peer, requests))
        assert peer.scheduler.load().num_preemptions == 1, step


@pytest.mark.product
@pytest.mark.parametrize("block_size", [8, 16, 32])
def test_preemptions_of_either_kind_among_forks_do_not_matter(
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
    )
    subject.check(answers_together(peer, forks))
    assert peer.scheduler.load().num_preemptions > 20


def test_resuming_elsewhere_does_not_matter(subject: Subject) -> None:
    resumed = [
        replace(request, resume_token_ids=subject.expected[request.request_id].token_ids[: i % 9])
        for i, request in enumerate(subject.requests)
    ]
    answers = answers_together(Peer(subject.model), resumed)
    assert_same(answers, without_known(subject.expected, resumed))


def test_resuming_with_kv_from_another_engine_does_not_matter(subject: Subject) -> None:
    resumed = [
        replace(
            request,
            sampling=replace(request.sampling, prompt_logprobs=None),
            resume_token_ids=subject.expected[request.request_id].token_ids[: 1 + i % 8],
        )
        for i, request in enumerate(subject.requests)
    ]
    courier = Courier(Peer(subject.model), Peer(subject.model), resumed)
    expected = without_known(subject.expected, resumed)
    assert courier.run() == {name: answer.token_ids for name, answer in expected.items()}
    assert courier.num_received_tokens > 500


@pytest.mark.product
@pytest.mark.parametrize(("num_tokens", "num_blocks"), [(16, 1024), (512, 1024), (64, 48)], ids=str)
def test_prefilling_on_another_engine_does_not_matter(
    subject: Subject, num_tokens: int, num_blocks: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runner, "MIN_GROUP_BYTES", 1)
    prefill = Peer(subject.model, num_blocks=num_blocks, max_num_batched_tokens=num_tokens)
    # Log probabilities of a prompt come from one place alone.
    requests = [
        replace(request, sampling=replace(request.sampling, prompt_logprobs=None))
        for request in subject.requests
    ]
    courier = Courier(prefill, Peer(subject.model, num_blocks=num_blocks), requests)
    courier.run()
    expected = {
        name: answer._replace(prompt_logprobs=()) for name, answer in subject.expected.items()
    }
    assert_same(answers_of(courier.decode), expected)
    assert courier.num_received_tokens > 500
    assert courier.num_early > 50
    courier.check_first_tokens(tokens_of(expected))
