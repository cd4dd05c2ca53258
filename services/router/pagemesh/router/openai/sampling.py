"""From a request's fields and the model's defaults to the sequences to generate."""

from __future__ import annotations

import secrets
from collections.abc import Sequence

from pagemesh.errors import InvalidRequestError
from pagemesh.router.generation.request import Choice
from pagemesh.router.openai.fields import RequestFields
from pagemesh.sampling.params import SamplingParams
from pagemesh.tokenizer.generation_defaults import GenerationDefaults

_SEED_MASK = 2**64 - 1


def make_choices(
    prompts: Sequence[Sequence[int]],
    max_tokens: Sequence[int],
    fields: RequestFields,
    defaults: GenerationDefaults,
) -> tuple[Choice, ...]:
    """`n` choices for each prompt; answer i to every prompt draws with seed + i."""
    # Drawn here, not by the worker, so that a request that moves keeps its draws.
    seed = secrets.randbits(63) if fields.seed is None else fields.seed
    return tuple(
        Choice(tuple(prompt), _sampling(fields, defaults, limit, (seed + answer) & _SEED_MASK))
        for prompt, limit in zip(prompts, max_tokens, strict=True)
        for answer in range(fields.n or 1)
    )


def _sampling(
    fields: RequestFields, defaults: GenerationDefaults, max_tokens: int, seed: int
) -> SamplingParams:
    min_tokens = fields.min_tokens or 0
    if min_tokens > max_tokens:
        raise InvalidRequestError(
            f"min_tokens is {min_tokens}, but at most {max_tokens} tokens can be generated",
            param="min_tokens",
        )
    return SamplingParams(
        temperature=defaults.temperature if fields.temperature is None else fields.temperature,
        top_p=defaults.top_p if fields.top_p is None else fields.top_p,
        top_k=max(0, defaults.top_k if fields.top_k is None else fields.top_k),
        seed=seed,
        max_tokens=max_tokens,
        min_tokens=min_tokens,
        stop_token_ids=tuple(fields.stop_token_ids or ()),
        ignore_eos=bool(fields.ignore_eos),
    )
