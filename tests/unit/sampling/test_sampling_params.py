from __future__ import annotations

import math
from typing import Any

import pytest

from pagemesh.errors import InvalidRequestError
from pagemesh.sampling.params import SamplingParams, check_sampling

NAN, INF = math.nan, math.inf
VOCAB_SIZE = 100

FAULTY: list[tuple[dict[str, Any], str]] = [
    ({"temperature": NAN}, "temperature is nan, but must be in [0, inf)"),
    ({"temperature": -0.1}, "temperature is -0.1, but must be in [0, inf)"),
    ({"temperature": INF}, "temperature is inf, but must be in [0, inf)"),
    ({"temperature": "hot"}, "temperature is 'hot', but must be in [0, inf)"),
    ({"top_p": 0.0}, "top_p is 0.0, but must be in (0, 1]"),
    ({"top_p": 1.1}, "top_p is 1.1, but must be in (0, 1]"),
    ({"top_p": NAN}, "top_p is nan, but must be in (0, 1]"),
    ({"top_k": -2}, "top_k is -2, but must be a whole number in [-1, 4294967295]"),
    ({"top_k": 2.5}, "top_k is 2.5, but must be a whole number in [-1, 4294967295]"),
    ({"min_p": 1.5}, "min_p is 1.5, but must be in [0, 1]"),
    ({"min_p": NAN}, "min_p is nan, but must be in [0, 1]"),
    ({"repetition_penalty": 0.0}, "repetition_penalty is 0.0, but must be in (0, inf)"),
    ({"repetition_penalty": INF}, "repetition_penalty is inf, but must be in (0, inf)"),
    ({"repetition_penalty": -1.0}, "repetition_penalty is -1.0, but must be in (0, inf)"),
    ({"presence_penalty": 2.1}, "presence_penalty is 2.1, but must be in [-2, 2]"),
    ({"frequency_penalty": NAN}, "frequency_penalty is nan, but must be in [-2, 2]"),
    ({"seed": -1}, "seed is -1, but must be a whole number in [0, 18446744073709551615]"),
    ({"seed": 2**64}, f"seed is {2**64}, but must be a whole number in [0, 18446744073709551615]"),
    ({"max_tokens": 0}, "max_tokens is 0, but must be a whole number in [1, 4294967295]"),
    ({"min_tokens": -1}, "min_tokens is -1, but must be a whole number in [0, 4294967295]"),
    ({"min_tokens": 17}, "min_tokens is 17, but max_tokens is 16"),
    ({"logprobs": 21}, "logprobs is 21, but must be a whole number in [0, 20]"),
    ({"logprobs": True}, "logprobs is True, but must be a whole number in [0, 20]"),
    ({"prompt_logprobs": -1}, "prompt_logprobs is -1, but must be a whole number in [0, 20]"),
    (
        {"stop_token_ids": (5, 100)},
        "stop_token_ids contains 100, but the model's vocabulary has 100 tokens",
    ),
    (
        {"logit_bias": {-1: 0.5}},
        "logit_bias contains -1, but the model's vocabulary has 100 tokens",
    ),
    ({"logit_bias": {7: NAN}}, "logit_bias of token 7 is nan, but must be in [-100, 100]"),
    ({"logit_bias": {7: 100.5}}, "logit_bias of token 7 is 100.5, but must be in [-100, 100]"),
    ({"bad_words_token_ids": ((),)}, "bad_words_token_ids contains an empty sequence"),
    (
        {"bad_words_token_ids": ((1, 2.5),)},
        "bad_words_token_ids contains 2.5, but the model's vocabulary has 100 tokens",
    ),
    (
        {"bad_words_token_ids": ((1,),) * 129},
        "bad_words_token_ids has 129 sequences, but at most 128 are allowed",
    ),
    (
        {"bad_words_token_ids": ((1,) * 99,) * 11},
        "bad_words_token_ids has 1089 tokens, but at most 1024 are allowed",
    ),
    (
        {"allowed_token_ids": (3,) * 101},
        "allowed_token_ids has 101 ids, but the model's vocabulary has 100 tokens",
    ),
    ({"allowed_token_ids": ()}, "allowed_token_ids is empty: no token could be sampled"),
    (
        {"allowed_token_ids": (3, 100)},
        "allowed_token_ids contains 100, but the model's vocabulary has 100 tokens",
    ),
    (
        {"allowed_token_ids": (3, 4), "bad_words_token_ids": ((3,), (4,), (5,))},
        "allowed_token_ids has no token that bad words and min_tokens leave over",
    ),
    (
        {"allowed_token_ids": (3, 4, 9), "stop_token_ids": (3, 4), "min_tokens": 1},
        "allowed_token_ids has no token that bad words and min_tokens leave over",
    ),
]


@pytest.mark.parametrize(("params", "message"), FAULTY, ids=[message for _, message in FAULTY])
def test_faulty_parameters_are_refused_by_name_value_and_limit(
    params: dict[str, Any], message: str
) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        check_sampling(SamplingParams(**params), VOCAB_SIZE, eos_token_ids=(9,))
    assert caught.value.message == message
    assert caught.value.param in params


def test_the_limits_themselves_are_allowed() -> None:
    lowest = SamplingParams(
        temperature=0,
        top_p=1e-9,
        top_k=-1,
        min_p=0,
        repetition_penalty=1e-45,
        presence_penalty=-2,
        frequency_penalty=-2,
        logprobs=0,
        prompt_logprobs=0,
        max_tokens=1,
    )
    highest = SamplingParams(
        top_p=1,
        top_k=2**32 - 1,
        min_p=1,
        presence_penalty=2,
        frequency_penalty=2,
        seed=2**64 - 1,
        logprobs=20,
        prompt_logprobs=20,
        min_tokens=16,
        logit_bias={0: -100, 99: 100},
        bad_words_token_ids=((1,) * 100, *((2, 3, 4, 5, 6, 7, 8),) * 126, (9,) * 42),
        allowed_token_ids=(9,),
        ignore_eos=True,
        stop_token_ids=(99,),
    )
    check_sampling(lowest, VOCAB_SIZE, eos_token_ids=(9,))
    check_sampling(highest, VOCAB_SIZE, eos_token_ids=(9,))


def test_parameters_can_be_hashed() -> None:
    assert len({SamplingParams(logit_bias={1: 2.0}), SamplingParams(logit_bias={1: 2.0})}) == 1
