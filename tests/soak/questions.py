"""The requests of the soak: prompts of many lengths, several with the same beginning, greedy and seeded."""

from __future__ import annotations

import random
from dataclasses import dataclass

from pagemesh.v1 import types_pb2

NUM_PREFIXES = 8
NUM_QUESTIONS = 120


@dataclass(frozen=True, slots=True)
class Question:
    """A prompt and how its answer is sampled; the answer does not depend on who computes what."""

    prompt_token_ids: tuple[int, ...]
    sampling: types_pb2.SamplingParams


def _tokens(draws: random.Random, count: int) -> tuple[int, ...]:
    return tuple(draws.randrange(20, 1900) for _ in range(count))


def make_questions(draws: random.Random) -> list[Question]:
    """The same for the same state of `draws`."""
    prefixes = [_tokens(draws, draws.choice((16, 64, 160, 400))) for _ in range(NUM_PREFIXES)]
    questions = []
    for number in range(NUM_QUESTIONS):
        if number % 24 == 0:
            prompt = _tokens(draws, draws.randrange(1000, 1900))
        elif number % 3:
            prompt = draws.choice(prefixes) + _tokens(draws, draws.randrange(1, 200))
        else:
            prompt = _tokens(draws, draws.randrange(1, 300))
        sampling = types_pb2.SamplingParams(
            max_tokens=draws.randrange(1, 9),
            temperature=draws.choice((0.0, 1.0, 1.5)),
            seed=draws.randrange(1 << 32),
            ignore_eos=True,
        )
        questions.append(Question(prompt, sampling))
    return questions
