from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.trace import INVALID_SPAN

from pagemesh.config import ApiConfig
from pagemesh.errors import InvalidRequestError
from pagemesh.router.call import Call
from pagemesh.router.generation.request import Choice
from pagemesh.router.openai.answer_options import AnswerOptions
from pagemesh.router.openai.completion_request import parse_completion_request
from pagemesh.router.openai.generation_request import make_request
from pagemesh.router.openai.sampling import make_choices
from pagemesh.router.served_model import ServedModel
from pagemesh.sampling.params import SamplingParams
from pagemesh.tokenizer import Tokenizer
from pagemesh.tokenizer.model_defaults import GenerationDefaults, Matryoshka

FOLDER = Path(__file__).resolve().parents[3] / "models/demo"
DEFAULTS = GenerationDefaults(
    temperature=0.5, top_p=0.9, top_k=20, min_p=0.1, repetition_penalty=1.5
)
MODEL = ServedModel("demo", Tokenizer(FOLDER), DEFAULTS, created=0, matryoshka=Matryoshka())


def choices(prompts: list[list[int]], max_tokens: list[int], **fields: Any) -> tuple[Choice, ...]:
    request = parse_completion_request(json.dumps({"prompt": "x", **fields}).encode())
    return make_choices(prompts, max_tokens, request, MODEL)


def test_what_a_request_leaves_out_is_the_models_default() -> None:
    (choice,) = choices([[1, 2]], [9], seed=4)
    assert choice.prompt_token_ids == (1, 2)
    assert choice.sampling == SamplingParams(
        temperature=0.5,
        top_p=0.9,
        top_k=20,
        min_p=0.1,
        repetition_penalty=1.5,
        seed=4,
        max_tokens=9,
    )


def test_a_top_p_of_0_leaves_the_likeliest_token() -> None:
    (choice,) = choices([[1]], [9], top_p=0)
    assert choice.sampling.top_p == 1e-9


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"n": 4}, "n"),
        ({"best_of": 4}, "best_of"),
        ({"stop": list("abc")}, "stop"),
        ({"logprobs": 6}, "logprobs"),
        ({"prompt_logprobs": 6}, "prompt_logprobs"),
    ],
)
def test_settings_limit_what_a_request_may_ask_for(fields: dict[str, Any], param: str) -> None:
    limits = ApiConfig(max_choices=3, max_stop_strings=2, max_logprobs=5)
    call = Call("r", INVALID_SPAN, 0.0, 0)

    def make(model: ServedModel) -> None:
        request = parse_completion_request(json.dumps({"prompt": "x", **fields}).encode())
        make_request(call, model, request, [[1]], [9])

    make(MODEL)
    with pytest.raises(InvalidRequestError, match=f"^{param} .*router's --max-") as error:
        make(replace(MODEL, api=limits))
    assert error.value.param == param


def test_settings_say_what_answers_tell_without_being_asked() -> None:
    always = replace(
        MODEL, api=ApiConfig(return_tokens_as_token_ids=True, enable_force_include_usage=True)
    )

    def options(model: ServedModel, **fields: Any) -> AnswerOptions:
        body = json.dumps({"prompt": "x", "stream": True, **fields}).encode()
        return AnswerOptions.of(parse_completion_request(body), model)

    assert (options(MODEL).tokens.are_ids, options(MODEL).include_usage) == (False, False)
    told = options(always)
    assert (told.tokens.are_ids, told.include_usage, told.has_continuous_usage) == (
        True, True, False,
    )  # fmt: skip
    # A request may leave it out, but not the counts.
    said = {"return_tokens_as_token_ids": False, "stream_options": {"include_usage": False}}
    told = options(always, **said)
    assert (told.tokens.are_ids, told.include_usage) == (False, True)


def test_what_a_request_says_wins() -> None:
    fields = {
        "temperature": 0,
        "top_p": 1,
        "top_k": -1,
        "min_p": 0,
        "repetition_penalty": 1,
        "presence_penalty": -0.5,
        "frequency_penalty": 2,
        "logit_bias": {"7": -100, "12": 0.5},
        "allowed_token_ids": [5, 7, 12],
        "seed": -1,
        "min_tokens": 2,
    }
    (choice,) = choices([[1]], [9], **fields, stop_token_ids=[5], ignore_eos=True)
    assert choice.sampling == SamplingParams(
        temperature=0.0,
        top_p=1.0,
        top_k=0,
        presence_penalty=-0.5,
        frequency_penalty=2.0,
        logit_bias={7: -100.0, 12: 0.5},
        allowed_token_ids=(5, 7, 12),
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


def test_bad_words_are_forbidden_with_and_without_a_space_before_them() -> None:
    (choice,) = choices([[1]], [9], bad_words=["Paris"])
    words = [MODEL.tokenizer.decode(ids) for ids in choice.sampling.bad_words_token_ids]
    assert words == ["Paris", " Paris"]


@pytest.mark.parametrize(
    ("fields", "param", "message"),
    [
        ({"min_p": 1.5}, "min_p", "min_p is 1.5: Input should be less than or equal to 1"),
        (
            {"presence_penalty": -2.5},
            "presence_penalty",
            "presence_penalty is -2.5: Input should be greater than or equal to -2",
        ),
        (
            {"repetition_penalty": 0},
            "repetition_penalty",
            "repetition_penalty is 0: Input should be greater than 0",
        ),
        (
            {"logit_bias": {"5": 101}},
            "logit_bias.5",
            "logit_bias.5 is 101: Input should be less than or equal to 100",
        ),
        (
            {"logit_bias": {"five": 1}},
            "logit_bias",
            'logit_bias has the key "five", which is no token id',
        ),
        (
            {"logit_bias": {"9" * 5_000: 1}},
            "logit_bias",
            f'logit_bias has the key "{"9" * 99}…, which is no token id',
        ),
        (
            {"logit_bias": {"2048": 1}},
            "logit_bias",
            "logit_bias contains 2048, but the model's vocabulary has 2048 tokens",
        ),
        (
            {"allowed_token_ids": []},
            "allowed_token_ids",
            "allowed_token_ids is []: List should have at least 1 item after validation, not 0",
        ),
        (
            {"allowed_token_ids": [3, 2048]},
            "allowed_token_ids",
            "allowed_token_ids contains 2048, but the model's vocabulary has 2048 tokens",
        ),
        (
            {"stop_token_ids": [2048]},
            "stop_token_ids",
            "stop_token_ids contains 2048, but the model's vocabulary has 2048 tokens",
        ),
        ({"bad_words": [" "]}, "bad_words", "bad_words contains a blank word"),
        (
            {"bad_words": ["x" * 5000, "y" * 5000]},
            "bad_words",
            "bad_words has 10000 characters, but at most 8192 are allowed",
        ),
        (
            {"allowed_token_ids": [5] * 2049},
            "allowed_token_ids",
            "allowed_token_ids has 2049 ids, but the model's vocabulary has 2048 tokens",
        ),
        (
            {"bad_words": [f"w{number}" for number in range(100)]},
            "bad_words",
            "bad_words can be written as 200 sequences of 580 tokens, but at most 128 and 1024 are"
            " allowed",
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_no_worker_would_take_is_refused(
    fields: dict[str, Any], param: str, message: str
) -> None:
    with pytest.raises(InvalidRequestError) as error:
        choices([[1]], [9], **fields)
    assert (error.value.param, error.value.message) == (param, message)


def test_the_best_answers_are_found_by_log_probabilities_that_nobody_asked_for() -> None:
    made = choices([[1]], [9], best_of=3, n=1, seed=7)
    assert [(c.sampling.seed, c.sampling.logprobs) for c in made] == [(7, 0), (8, 0), (9, 0)]
    assert [c.sampling.logprobs for c in choices([[1]], [9], best_of=3, logprobs=2)] == [2, 2, 2]
    assert [c.sampling.logprobs for c in choices([[1]], [9], best_of=2, n=2)] == [None, None]


def test_each_prompt_is_scored_once() -> None:
    made = choices([[1], [2]], [9, 9], n=2, prompt_logprobs=3)
    assert [c.sampling.prompt_logprobs for c in made] == [3, None, 3, None]
