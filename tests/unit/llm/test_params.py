"""The sampling parameters that users of `LLM` write."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from pagemesh.errors import InvalidRequestError
from pagemesh.llm import SamplingParams
from pagemesh.sampling import params as engine_params
from pagemesh.sampling.structured.outputs import StructuredOutputs


def test_every_setting_of_the_engines_sampler_can_be_given() -> None:
    ours = {field.name for field in dataclasses.fields(SamplingParams)}
    ours.add("bad_words_token_ids")  # made from `bad_words`
    assert {field.name for field in dataclasses.fields(engine_params.SamplingParams)} <= ours


def test_what_is_left_out_has_vllms_defaults() -> None:
    assert SamplingParams().for_engine(seed=7, room=100) == engine_params.SamplingParams(
        temperature=1.0, top_p=1.0, top_k=0, seed=7, max_tokens=16
    )


def test_what_is_given_reaches_the_engine() -> None:
    given = SamplingParams(
        temperature=0.5,
        top_p=0.9,
        top_k=40,
        max_tokens=8,
        min_tokens=2,
        stop_token_ids=[5, 6],
        ignore_eos=True,
        min_p=0.1,
        repetition_penalty=1.2,
        presence_penalty=0.3,
        frequency_penalty=-0.4,
        logit_bias={5: 1.5},
        allowed_token_ids=[5, 6, 7],
        logprobs=3,
        prompt_logprobs=0,
    )
    assert given.for_engine(1, 100, ((8, 9),)) == engine_params.SamplingParams(
        temperature=0.5,
        top_p=0.9,
        top_k=40,
        seed=1,
        max_tokens=8,
        min_tokens=2,
        stop_token_ids=(5, 6),
        ignore_eos=True,
        min_p=0.1,
        repetition_penalty=1.2,
        presence_penalty=0.3,
        frequency_penalty=-0.4,
        logit_bias={5: 1.5},
        allowed_token_ids=(5, 6, 7),
        bad_words_token_ids=((8, 9),),
        logprobs=3,
        prompt_logprobs=0,
    )


def test_without_a_limit_the_answer_may_fill_the_context() -> None:
    assert SamplingParams(max_tokens=None).for_engine(seed=0, room=33).max_tokens == 33


@pytest.mark.parametrize(
    ("seed", "expected"), [(-1, 2**64 - 1), (2**64 - 1, 2**64 - 1), (2**64, 0)]
)
def test_seeds_wrap_around_at_64_bits(seed: int, expected: int) -> None:
    assert SamplingParams().for_engine(seed=seed, room=1).seed == expected


def test_structured_outputs_have_vllms_keys() -> None:
    given = SamplingParams(structured_outputs={"choice": ["yes", "no"]}).for_engine(0, 1)
    assert given.structured_outputs == StructuredOutputs.of(choice=["yes", "no"])
    made = StructuredOutputs.of(regex="[0-9]+")
    assert SamplingParams(structured_outputs=made).for_engine(0, 1).structured_outputs is made


def test_answers_that_are_ranked_are_scored() -> None:
    assert SamplingParams(n=2, best_of=3).for_engine(0, 1).logprobs == 0
    assert SamplingParams(n=2, best_of=3, logprobs=4).for_engine(0, 1).logprobs == 4
    assert SamplingParams(n=3, best_of=3).for_engine(0, 1).logprobs is None
    with pytest.raises(InvalidRequestError, match="best_of is 2, but must be from n = 3"):
        SamplingParams(n=3, best_of=2)


def test_stop_strings_come_alone_or_in_lists() -> None:
    assert SamplingParams(stop="END").stop_strings == ("END",)
    assert SamplingParams(stop=["a", "b"]).stop_strings == ("a", "b")
    assert SamplingParams().stop_strings == ()


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("n", 0),
        ("n", True),
        ("n", 1.5),
        ("temperature", -0.1),
        ("temperature", float("nan")),
        ("temperature", "0.5"),
        ("top_p", 0),
        ("top_p", 1.1),
        ("top_k", -2),
        ("seed", 2**64),
        ("seed", 0.5),
        ("max_tokens", 0),
        ("min_tokens", -1),
        ("min_tokens", 17),
        ("stop", ""),
        ("stop", ["a", ""]),
        ("stop", 5),
        ("stop_token_ids", [-1]),
        ("stop_token_ids", 5),
        ("ignore_eos", 1),
        ("best_of", 0),
        ("structured_outputs", 5),
        ("structured_outputs", {}),
        ("structured_outputs", {"regexp": "a"}),
        ("bad_words", [""]),
        ("bad_words", [" "]),
        ("bad_words", "word"),
        ("logit_bias", [5]),
        ("logit_bias", {5: 101}),
        ("allowed_token_ids", []),
        ("presence_penalty", 3),
        ("logprobs", -1),
        ("prompt_logprobs", 1.5),
    ],
)
def test_a_value_that_cannot_be_is_named(name: str, value: Any) -> None:
    with pytest.raises(InvalidRequestError) as refusal:
        SamplingParams(**{name: value})
    assert name in refusal.value.message or name == "structured_outputs"
    assert refusal.value.param == name
