"""Running streams whose tokens come while something else happens beside them."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Iterator, Sequence
from itertools import count, cycle

from kv.sessions import Answer, TimedSession
from random_models import LONG_SHAPES, SHAPES
from workload import make_prompt

VOCAB_SIZE = SHAPES["160M"].vocab_size
assert LONG_SHAPES["160M-long"].vocab_size == VOCAB_SIZE
SEEDS: Iterator[int] = count(1)
"""Of prompts: no two share a prefix, in whatever part of the benchmark."""


def fresh_prompt(num_tokens: int) -> list[int]:
    """A prompt that nobody has seen."""
    return make_prompt(num_tokens, VOCAB_SIZE, next(SEEDS))


async def start_streams(
    sessions: Sequence[TimedSession], num_streams: int, prompt_tokens: int, num_tokens: int
) -> list[Answer]:
    """Streams that run, shared out equally among the workers; returns when all have a token."""
    answers = [
        await session.submit(fresh_prompt(prompt_tokens), num_tokens)
        for session, _ in zip(cycle(sessions), range(num_streams), strict=False)
    ]
    await asyncio.gather(*(answer.until_first() for answer in answers))
    return answers


def gaps_ms(answers: Sequence[Answer], begin: float, end: float) -> list[float]:
    """Inter-token latencies of all streams within a time; RuntimeError when a stream ended in it."""
    for answer in answers:
        if answer.over.is_set():
            raise RuntimeError("a stream ended before it was measured: it should be longer")
    return [gap for answer in answers for gap in answer.gaps_ms(begin, end)]


def percentile(samples: Sequence[float], share: float) -> float:
    """The least sample that this share of them does not exceed."""
    return sorted(samples)[math.ceil(share * len(samples)) - 1]
