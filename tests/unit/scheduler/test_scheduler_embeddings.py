"""Embeddings: prefills that end with a vector."""

from __future__ import annotations

import struct
from dataclasses import replace
from typing import Any, Literal

import numpy as np
import pytest

from pagemesh.core.engine import EngineInfo, Pooling
from pagemesh.core.request import EngineRequest
from pagemesh.errors import InvalidRequestError, UnsupportedError
from pagemesh.sampling.params import SamplingParams
from pagemesh.sampling.structured.outputs import StructuredOutputs
from pagemesh.scheduler.request import Pooler
from tests.unit.scheduler.builders import FixedWay, Stepper, make_info, make_request

PROMPT = (3, 4, 5, 6, 7, 8, 9, 10, 11, 12)
LAST = (12.0, 144.0, 1.0)
MEAN = (7.5, 64.5, 1.0)


FIRST = (3.0, 9.0, 1.0)


def info(kind: Literal["last", "mean"] | None, **settings: Any) -> EngineInfo:
    pooling = None if kind is None else Pooling(kind, normalize=False)
    return replace(make_info(**settings), pooling=pooling)


def encoder_info(kind: Literal["last", "mean", "cls"] = "cls", **settings: Any) -> EngineInfo:
    pooling = Pooling(kind, normalize=False)
    return replace(make_info(**settings), pooling=pooling, generates=False, causal=False)


def embed(request_id: str, prompt: tuple[int, ...] = PROMPT) -> EngineRequest:
    return EngineRequest(request_id, prompt, embed=True)


def vector(stepper: Stepper, request_id: str) -> tuple[float, ...]:
    (end,) = stepper.ends[request_id]
    assert end.error is None
    assert end.embedding is not None
    return struct.unpack("=3f", end.embedding)


@pytest.mark.parametrize("num_budget_tokens", [1, 3, 4, 64])
@pytest.mark.parametrize(("kind", "expected"), [("last", LAST), ("mean", MEAN)])
def test_the_vector_is_the_same_for_every_chunk_size(
    kind: Literal["last", "mean"], expected: tuple[float, ...], num_budget_tokens: int
) -> None:
    stepper = Stepper(info(kind), max_num_batched_tokens=num_budget_tokens)
    stepper.submit(embed("a"), make_request("b", 5, max_tokens=3))
    stepper.run()
    assert vector(stepper, "a") == expected
    assert stepper.reason("a") == "stop"
    assert stepper.tokens["a"] == []
    assert len(stepper.tokens["b"]) == 3
    assert stepper.num_free_blocks == 16


def test_the_last_token_alone_is_computed_behind_a_warm_prefix() -> None:
    stepper = Stepper(info("last"))
    stepper.submit(embed("a", PROMPT[:9]))
    stepper.run()
    stepper.submit(embed("b"))
    assert stepper.step() == [("b", 8, 2)]
    assert vector(stepper, "b") == LAST
    assert stepper.ends["b"][0].num_cached_tokens == 8


def test_a_mean_takes_no_hits_and_leaves_its_blocks_to_others() -> None:
    stepper = Stepper(info("mean"))
    stepper.submit(embed("a"))
    stepper.run()
    stepper.submit(embed("b"), make_request("c", PROMPT, max_tokens=1))
    assert stepper.step() == [("b", 0, 10), ("c", 8, 2)]
    assert vector(stepper, "b") == MEAN


@pytest.mark.parametrize("swaps", [False, True])
def test_a_preempted_mean_counts_every_token_once(swaps: bool) -> None:
    stepper = Stepper(
        info("mean"), max_num_batched_tokens=3, num_swap_blocks=8, preemption=FixedWay(swaps)
    )
    stepper.submit(embed("a"))
    for _ in range(3):
        stepper.step()
        (request,) = stepper.requests.active
        stepper.scheduler._preempt(request)
    stepper.run()
    assert vector(stepper, "a") == MEAN


def test_a_prompt_may_fill_the_whole_context() -> None:
    stepper = Stepper(info("last", num_blocks=2, max_model_len=8))
    stepper.submit(embed("a", PROMPT[:8]), embed("b", PROMPT[:9]))
    stepper.run()
    assert vector(stepper, "a") == (10.0, 100.0, 1.0)
    (refusal,) = stepper.ends["b"]
    assert str(refusal.error) == "the prompt has 9 tokens, but the model embeds at most 8"


def test_embeddings_say_nothing_of_how_long_answers_get() -> None:
    stepper = Stepper(info("last"))
    stepper.submit(embed("a"))
    stepper.run()
    assert stepper.scheduler._forecast.observed == []  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    "changes",
    [
        {"hold_blocks": True},
        {"await_kv": True},
        {"fork_of": "b"},
        {"resume_token_ids": (5,)},
        {"sampling": SamplingParams(prompt_logprobs=0)},
        {"sampling": SamplingParams(structured_outputs=StructuredOutputs.of(regex="a"))},
    ],
    ids=lambda changes: next(iter(changes)),
)
def test_what_has_no_meaning_for_an_embedding_is_refused(changes: dict[str, Any]) -> None:
    stepper = Stepper(info("last"))
    stepper.submit(replace(embed("a"), **changes))
    stepper.run()
    (refusal,) = stepper.ends["a"]
    assert isinstance(refusal.error, InvalidRequestError)
    assert refusal.error.param == "embed"


def test_a_model_is_asked_only_for_what_it_can_make() -> None:
    without_states = Stepper(info(None))
    without_states.submit(embed("a"))
    without_states.run()
    assert isinstance(without_states.ends["a"][0].error, UnsupportedError)
    without_head = Stepper(replace(info("last"), generates=False))
    without_head.submit(embed("a"), make_request("b", 3))
    without_head.run()
    assert vector(without_head, "a") == LAST
    assert str(without_head.ends["b"][0].error) == (
        "the model has no output head: it makes embeddings and does not generate text"
    )


@pytest.mark.parametrize(("kind", "expected"), [("last", LAST), ("mean", MEAN), ("cls", FIRST)])
def test_an_encoders_prompts_are_computed_whole(
    kind: Literal["last", "mean", "cls"], expected: tuple[float, ...]
) -> None:
    stepper = Stepper(encoder_info(kind), max_num_batched_tokens=16)
    stepper.submit(embed("a"), embed("b", PROMPT[:6]), embed("c", PROMPT[:7]), embed("d"))
    # What does not fit whole waits, and nobody overtakes it.
    assert stepper.step() == [("a", 0, 10), ("b", 0, 6)]
    assert stepper.step() == [("c", 0, 7)]
    assert stepper.step() == [("d", 0, 10)]
    assert vector(stepper, "a") == vector(stepper, "d") == expected
    assert stepper.num_free_blocks == 16


def test_an_encoders_prompts_wait_for_blocks_and_seats() -> None:
    stepper = Stepper(encoder_info(num_blocks=3, max_num_seqs=2))
    sizes = {"a": 8, "b": 8, "c": 1, "d": 1}
    stepper.submit(*(embed(name, PROMPT[:size]) for name, size in sizes.items()))
    assert stepper.step() == [("a", 0, 8)]
    assert stepper.step() == [("b", 0, 8), ("c", 0, 1)]
    assert stepper.step() == [("d", 0, 1)]


def test_an_encoder_keeps_no_kv() -> None:
    stepper = Stepper(encoder_info("last"))
    for name in ("a", "b"):
        stepper.submit(embed(name))
        assert stepper.step() == [(name, 0, 10)]
    assert stepper.ends["b"][0].num_cached_tokens == 0
    assert stepper.cached == set()


def test_a_mean_has_the_same_bits_however_its_prompt_is_cut() -> None:
    states = np.random.default_rng(3).normal(size=(100, 7)).astype(np.float32)
    states[::7] *= 1e6
    results = set()
    for size in (1, 13, 64, 100):
        pooled = Pooler(Pooling("mean", normalize=True), 100)
        for start in range(0, 100, size):
            pooled.add(states[start : start + size])
        results.add(pooled.result())
    (result,) = results
    expected = states.astype(np.float64).mean(0)
    expected /= np.linalg.norm(expected)
    np.testing.assert_allclose(np.frombuffer(result, np.float32), expected, rtol=1e-6)


def test_a_vector_of_zeros_stays_one() -> None:
    pooled = Pooler(Pooling("last", normalize=True), 1)
    pooled.add(np.zeros((1, 2), np.float32))
    assert pooled.result() == bytes(8)


@pytest.mark.parametrize("asked", [True, False, None])
def test_a_request_may_say_whether_its_vector_has_a_length_of_1(asked: bool | None) -> None:
    for of_model in (True, False):
        stepper = Stepper(replace(make_info(), pooling=Pooling("last", normalize=of_model)))
        stepper.submit(replace(embed("a"), normalize=asked))
        stepper.run()
        is_scaled = of_model if asked is None else asked
        length = float(np.linalg.norm(LAST)) if is_scaled else 1.0
        assert vector(stepper, "a") == pytest.approx([value / length for value in LAST])
