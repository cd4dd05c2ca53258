"""What engines said, and whether it is the same: token ids exactly, log probabilities within a tolerance."""

from __future__ import annotations

import queue
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

import pytest

from pagemesh.core.engine import StepOutput
from pagemesh.core.request import EngineRequest
from pagemesh.models.loader import LoadedModel
from pagemesh.sampling.logprobs import TokenLogprobs
from tests.identity.engines import (
    Peer,
    Tokens,
    generate,
    running,
    wait_for_ends,
)
from tests.support.machine import MakeRunner, on_cpu

TOLERANCE: Final = 2e-4
"""Of log probabilities in float32: rounding moves logits of up to 30 by some 1e-5."""


class Answer(NamedTuple):
    """What an engine said to one request."""

    token_ids: tuple[int, ...]
    logprobs: tuple[TokenLogprobs, ...]
    prompt_logprobs: tuple[TokenLogprobs, ...]


Answers = Mapping[str, Answer]


def answers_of(peer: Peer) -> dict[str, Answer]:
    """All that was noted."""
    return {
        request_id: Answer(
            tuple(peer.tokens[request_id]),
            tuple(peer.logprobs[request_id]),
            tuple(peer.prompt_logprobs[request_id]),
        )
        for request_id in peer.ends
    }


def tokens_of(answers: Answers) -> Tokens:
    """The token ids alone."""
    return {name: answer.token_ids for name, answer in answers.items()}


def answers_alone(
    model: LoadedModel, requests: Sequence[EngineRequest], make_runner: MakeRunner = on_cpu
) -> dict[str, Answer]:
    """Each request alone in an engine without prefix cache, its prompt in one piece."""
    answers: dict[str, Answer] = {}
    peer = Peer(model, num_blocks=64, enable_prefix_caching=False, make_runner=make_runner)
    for answer in answers_in_rounds(peer, [[request] for request in requests]):
        answers |= answer
    return answers


def answers_twice(
    peer: Peer, requests: Sequence[EngineRequest]
) -> tuple[dict[str, Answer], dict[str, Answer]]:
    """All requests with a cold and then with a warm prefix cache; the peer has noted the latter."""
    cold, warm = answers_in_rounds(peer, [requests, requests])
    return cold, warm


def answers_in_rounds(
    peer: Peer, rounds: Sequence[Sequence[EngineRequest]]
) -> list[dict[str, Answer]]:
    """Each round's requests, computed in one continuous batch when the ones before have ended."""
    steps: queue.Queue[tuple[Peer, StepOutput]] = queue.Queue()
    answers = []
    with running(peer, listener_queue=steps):
        for requests in rounds:
            peer.forget()
            peer.submit_ready(requests)
            wait_for_ends(peer, steps, len(requests))
            answers.append(answers_of(peer))
    return answers


def answers_together(peer: Peer, requests: Sequence[EngineRequest]) -> dict[str, Answer]:
    """All requests in one batch that has them all from the start on."""
    generate(peer, requests)
    return answers_of(peer)


def without_known(answers: Answers, requests: Sequence[EngineRequest]) -> dict[str, Answer]:
    """What is left to say by engines that resume the requests."""
    rest = {}
    for request in requests:
        tokens, logprobs, prompt_logprobs = answers[request.request_id]
        known = len(request.resume_token_ids)
        # Whoever knows tokens has the prompt's log probabilities too.
        scores = () if known else prompt_logprobs
        rest[request.request_id] = Answer(tokens[known:], logprobs[known:], scores)
    return rest


def assert_same(answers: Answers, expected: Answers) -> None:
    """Every answer is the one that was expected under its name; some may be missing."""
    assert tokens_of(answers) == {name: expected[name].token_ids for name in answers}
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
