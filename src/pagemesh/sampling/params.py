"""How the next token of a request is chosen: parameters, their checks, and seeds. No torch.

Limits are vLLM's, except where a comment says why not.
"""

from __future__ import annotations

import math
import random
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from pagemesh.errors import InvalidRequestError
from pagemesh.sampling.structured.outputs import StructuredOutputs

MAX_TEMPERATURE: Final = 2
"""Highest temperature that services accept, as in OpenAI's API; the sampler takes any."""

MAX_LOGPROBS: Final = 20
"""Most log probabilities that are reported beside a token's own; vLLM's default limit."""

MAX_LOGIT_BIAS: Final = 100.0
"""Largest amount of a bias; it alone decides between any two tokens."""

MAX_BAD_WORDS: Final = 128
"""Most forbidden sequences of one request, as in vLLM."""

MAX_BAD_WORDS_TOKENS: Final = 1024
"""Most tokens in all of them together, as in vLLM."""


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """Sampling settings of one request, with vLLM's names and meaning; `check_sampling` checks them."""

    temperature: float = 1.0
    """Softmax temperature; 0 picks the most likely token."""

    top_p: float = 1.0
    """Nucleus mass in (0, 1]; 1 keeps all tokens."""

    top_k: int = 0
    """Number of most likely tokens kept; 0 and -1 keep all."""

    min_p: float = 0.0
    """Tokens less likely than this times the likeliest one are dropped; in [0, 1], 0 keeps all."""

    repetition_penalty: float = 1.0
    """Divides the positive logits of all tokens of the prompt and the output, and multiplies the
    negative ones; above 1 makes them less likely."""

    presence_penalty: float = 0.0
    """Taken from the logits of all tokens of the output; in [-2, 2]."""

    frequency_penalty: float = 0.0
    """Taken from the logit of a token once for each time it is in the output; in [-2, 2]."""

    logit_bias: Mapping[int, float] = field(default_factory=dict, hash=False)
    """Added to the logits of these token ids; each in [-100, 100]."""

    bad_words_token_ids: tuple[tuple[int, ...], ...] = ()
    """Sequences that must not be in the output: the last token of one is not sampled behind the others."""

    allowed_token_ids: tuple[int, ...] | None = None
    """The only token ids that may be sampled; none allows all."""

    seed: int = 0
    """Seed of the counter-based draws, an unsigned 64-bit integer."""

    max_tokens: int = 16
    """Most tokens to generate, those of an earlier incarnation included."""

    min_tokens: int = 0
    """Stop tokens are not sampled before this many tokens were generated."""

    stop_token_ids: tuple[int, ...] = ()
    """Token ids that end the request; the stop token is part of the output."""

    ignore_eos: bool = False
    """When true, the model's own end-of-sequence tokens do not end the request."""

    structured_outputs: StructuredOutputs | None = None
    """What the output must look like; none leaves it free. The output ends where nothing can follow,
    whatever `min_tokens` and `ignore_eos` say; before that, they hold."""

    logprobs: int | None = None
    """Likeliest tokens whose log probabilities are reported beside each sampled token's; 0 reports
    that one alone, none no log probabilities."""

    prompt_logprobs: int | None = None
    """The same for each token of the prompt but the first."""

    @property
    def greedy(self) -> bool:
        """Whether the most likely token is always taken."""
        return self.temperature == 0.0


_SEED_BITS: Final = 63
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


class Seeds:
    """Seeds for requests that bring none: drawn by chance, or one after the other from a seed of their own. The first
    request then gets what the first one got the last time, and so on."""

    def __init__(self, seed: int | None = None) -> None:
        self._random = random.SystemRandom() if seed is None else random.Random(seed)

    def draw(self) -> int:
        """The next one, of 63 bits."""
        return self._random.getrandbits(_SEED_BITS)
