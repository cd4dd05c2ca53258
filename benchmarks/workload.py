"""Requests as people send them: mostly short, a few long, every length different.

Lengths are log-normal like those of ShareGPT's conversations (their histograms in the paper of vLLM, Kwon
et al. 2023, figure 11), at half their size for the sake of two cores. Prompts are random tokens, so that
nothing is in a prefix cache.
"""

from __future__ import annotations

import math
import random
from typing import NamedTuple

FIRST_TOKEN = 300
"""Ids below may mean something special to a tokenizer."""


class Request(NamedTuple):
    """One request; exactly `num_tokens` are generated."""

    prompt: list[int]
    num_tokens: int


def make_requests(num_requests: int, vocab_size: int, seed: int) -> list[Request]:
    """A mixed workload; equal seeds give equal requests."""
    draws = random.Random(seed)
    requests = []
    for _ in range(num_requests):
        num_prompt = _length(draws, median=55, sigma=1.1, most=1024)
        num_tokens = _length(draws, median=110, sigma=0.9, most=512)
        requests.append(Request(_tokens(draws, num_prompt, vocab_size), num_tokens))
    return requests


def make_prompt(num_tokens: int, vocab_size: int, seed: int) -> list[int]:
    """A prompt of that length; different seeds share no prefix."""
    return _tokens(random.Random(seed), num_tokens, vocab_size)


def _length(draws: random.Random, median: float, sigma: float, most: int) -> int:
    return min(most, max(4, round(draws.lognormvariate(math.log(median), sigma))))


def _tokens(draws: random.Random, num_tokens: int, vocab_size: int) -> list[int]:
    return [draws.randrange(FIRST_TOKEN, vocab_size) for _ in range(num_tokens)]
