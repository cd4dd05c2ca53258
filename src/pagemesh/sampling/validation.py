"""Refuses sampling parameters that the sampler could not follow, before a request enters a batch.

Limits are vLLM's, except where a comment says why not. Names the field, its value and the limit.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from typing import Final

from pagemesh.errors import InvalidRequestError
from pagemesh.sampling.params import (
    MAX_BAD_WORDS,
    MAX_BAD_WORDS_TOKENS,
    MAX_LOGIT_BIAS,
    MAX_LOGPROBS,
    SamplingParams,
)

_MAX_SEED: Final = 2**64 - 1
_MAX_COUNT: Final = 2**32 - 1  # what the messages between processes hold

# Closed intervals of numbers; those of open ends are checked by hand.
_NUMBERS: Final = {
    "temperature": (0.0, math.inf),
    "top_p": (0.0, 1.0),
    "min_p": (0.0, 1.0),
    "presence_penalty": (-2.0, 2.0),
    "frequency_penalty": (-2.0, 2.0),
    "repetition_penalty": (0.0, math.inf),
}
_POSITIVE: Final = ("top_p", "repetition_penalty")
_COUNTS: Final = {
    "top_k": (-1, _MAX_COUNT),
    "seed": (0, _MAX_SEED),
    "max_tokens": (1, _MAX_COUNT),
    "min_tokens": (0, _MAX_COUNT),
    "logprobs": (0, MAX_LOGPROBS),
    "prompt_logprobs": (0, MAX_LOGPROBS),
}
_OPTIONAL: Final = ("logprobs", "prompt_logprobs")


def check_sampling(
    params: SamplingParams, vocab_size: int, eos_token_ids: Sequence[int] = ()
) -> None:
    """Raise InvalidRequestError for the first faulty field, or for fields that leave no token over."""
    for name, (low, high) in _COUNTS.items():
        _check_count(name, getattr(params, name), low, high)
    for name, (lowest, highest) in _NUMBERS.items():
        _check_number(name, getattr(params, name), lowest, highest)
    if params.min_tokens > params.max_tokens:
        raise InvalidRequestError(
            f"min_tokens is {params.min_tokens}, but max_tokens is {params.max_tokens}",
            param="min_tokens",
        )
    check_token_ids("stop_token_ids", params.stop_token_ids, vocab_size)
    _check_logit_bias(params, vocab_size)
    _check_bad_words(params, vocab_size)
    _check_allowed(params, vocab_size, eos_token_ids)


def check_token_ids(name: str, token_ids: Collection[int], vocab_size: int) -> None:
    """Raise InvalidRequestError for more ids than there are, or naming one that is none of them."""
    if len(token_ids) > vocab_size:
        raise InvalidRequestError(
            f"{name} has {len(token_ids)} ids, but the model's vocabulary has {vocab_size} tokens",
            param=name,
        )
    for token_id in token_ids:
        if not _is_int(token_id) or not 0 <= token_id < vocab_size:
            raise InvalidRequestError(
                f"{name} contains {token_id!r}, but the model's vocabulary has {vocab_size} tokens",
                param=name,
            )


def _check_count(name: str, value: object, low: int, high: int) -> None:
    if value is None and name in _OPTIONAL:
        return
    if not _is_int(value) or not low <= value <= high:  # type: ignore[operator]
        raise InvalidRequestError(
            f"{name} is {value!r}, but must be a whole number in [{low}, {high}]", param=name
        )


def _check_number(name: str, value: object, low: float, high: float) -> None:
    is_number = _is_int(value) or isinstance(value, float)
    is_open = name in _POSITIVE
    # A NaN is in no interval.
    is_inside = is_number and low <= value <= high and not (is_open and value == low)  # type: ignore[operator]
    if not is_inside or math.isinf(value):  # type: ignore[arg-type]
        limits = f"{'(' if is_open else '['}{low:g}, {high:g}{')' if math.isinf(high) else ']'}"
        raise InvalidRequestError(f"{name} is {value!r}, but must be in {limits}", param=name)


def _check_logit_bias(params: SamplingParams, vocab_size: int) -> None:
    check_token_ids("logit_bias", params.logit_bias, vocab_size)
    for token_id, bias in params.logit_bias.items():
        # vLLM cuts larger ones down without a word.
        is_number = _is_int(bias) or isinstance(bias, float)
        if not is_number or not -MAX_LOGIT_BIAS <= bias <= MAX_LOGIT_BIAS:
            raise InvalidRequestError(
                f"logit_bias of token {token_id} is {bias!r}, but must be in"
                f" [{-MAX_LOGIT_BIAS:g}, {MAX_LOGIT_BIAS:g}]",
                param="logit_bias",
            )


def _check_bad_words(params: SamplingParams, vocab_size: int) -> None:
    name, words = "bad_words_token_ids", params.bad_words_token_ids
    if len(words) > MAX_BAD_WORDS:
        raise InvalidRequestError(
            f"{name} has {len(words)} sequences, but at most {MAX_BAD_WORDS} are allowed",
            param=name,
        )
    num_tokens = sum(map(len, words))
    if num_tokens > MAX_BAD_WORDS_TOKENS:
        raise InvalidRequestError(
            f"{name} has {num_tokens} tokens, but at most {MAX_BAD_WORDS_TOKENS} are allowed",
            param=name,
        )
    for word in words:
        if not word:
            raise InvalidRequestError(f"{name} contains an empty sequence", param=name)
        check_token_ids(name, word, vocab_size)


def _check_allowed(params: SamplingParams, vocab_size: int, eos_token_ids: Sequence[int]) -> None:
    name, allowed = "allowed_token_ids", params.allowed_token_ids
    if allowed is None:
        return
    if not allowed:
        raise InvalidRequestError(f"{name} is empty: no token could be sampled", param=name)
    check_token_ids(name, allowed, vocab_size)
    forbidden = {word[0] for word in params.bad_words_token_ids if len(word) == 1}
    if params.min_tokens > 0:
        forbidden.update(params.stop_token_ids)
        forbidden.update(() if params.ignore_eos else eos_token_ids)
    if forbidden.issuperset(allowed):
        raise InvalidRequestError(
            f"{name} has no token that bad words and min_tokens leave over", param=name
        )


def _is_int(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)
