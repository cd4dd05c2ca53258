from __future__ import annotations

import json
from typing import Any

import pytest

from pagemesh.errors import InvalidRequestError
from pagemesh.router.generation.request import Choice
from pagemesh.router.openai.completion_request import parse_completion_request
from pagemesh.router.openai.sampling import make_choices
from pagemesh.sampling.params import SamplingParams
from pagemesh.tokenizer.generation_defaults import GenerationDefaults

DEFAULTS = GenerationDefaults(temperature=0.5, top_p=0.9, top_k=20)


def choices(prompts: list[list[int]], max_tokens: list[int], **fields: Any) -> tuple[Choice, ...]:
    request = parse_completion_request(json.dumps({"prompt": "x", **fields}).encode())
    return make_choices(prompts, max_tokens, request, DEFAULTS)


def test_what_a_request_leaves_out_is_the_models_default() -> None:
    (choice,) = choices([[1, 2]], [9], seed=4)
    assert choice.prompt_token_ids == (1, 2)
    assert choice.sampling == SamplingParams(
        temperature=0.5, top_p=0.9, top_k=20, seed=4, max_tokens=9
    )


def test_what_a_request_says_wins() -> None:
    fields = {"temperature": 0, "top_p": 1, "top_k": -1, "seed": -1, "min_tokens": 2}
    (choice,) = choices([[1]], [9], **fields, stop_token_ids=[5], ignore_eos=True)
    assert choice.sampling == SamplingParams(
        temperature=0.0,
        top_p=1.0,
        top_k=0,
        seed=2**64 - 1,
        max_tokens=9,
        min_tokens=2,
        stop_token_ids=(5,),
        ignore_eos=True,
    )


def test_answers_are_ordered_by_prompt_and_draw_with_seeds_that_follow_each_other() -> None:
    made = choices([[1], [2]], [3, 4], n=2, seed=7)
    assert [(c.prompt_token_ids, c.sampling.seed, c.sampling.max_tokens) for c in made] == [
        ((1,), 7, 3),
        ((1,), 8, 3),
        ((2,), 7, 4),
        ((2,), 8, 4),
    ]


def test_without_a_seed_two_requests_draw_differently() -> None:
    assert choices([[1]], [9])[0].sampling.seed != choices([[1]], [9])[0].sampling.seed


def test_more_least_than_most_tokens_are_refused() -> None:
    with pytest.raises(InvalidRequestError, match="min_tokens is 10, but at most 9") as error:
        choices([[1]], [9], min_tokens=10)
    assert error.value.param == "min_tokens"
