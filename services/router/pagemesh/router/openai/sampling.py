"""From a request's fields and the model's defaults to the sequences to generate."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from pagemesh.errors import InvalidRequestError
from pagemesh.router.generation.request import Choice
from pagemesh.router.openai.fields import RequestFields
from pagemesh.router.served_model import ServedModel
from pagemesh.sampling.params import SamplingParams, check_sampling
from pagemesh.sampling.structured.outputs import StructuredOutputs

_SEED_MASK = 2**64 - 1

_LEAST_TOP_P = 1e-9
"""Leaves the likeliest token alone, which is what OpenAI's top_p of 0 means."""


def make_choices(
    prompts: Sequence[Sequence[int]],
    max_tokens: Sequence[int],
    fields: RequestFields,
    model: ServedModel,
    forced: StructuredOutputs | None = None,
) -> tuple[Choice, ...]:
    """The choices of all prompts, in order; answer i to every prompt draws with seed + i.

    `forced` is what answers must look like, whatever the fields say.
    """
    # Drawn here, not by the worker, so that a request that moves keeps its draws.
    seed = model.seeds.draw() if fields.seed is None else fields.seed
    sampling = _sampling(fields, min(max_tokens), model, forced)
    return tuple(
        Choice(
            tuple(prompt),
            replace(
                sampling,
                max_tokens=limit,
                seed=(seed + answer) & _SEED_MASK,
                # The prompt is the same for all: the first answer says what is asked of it.
                prompt_logprobs=fields.num_prompt_logprobs if answer == 0 else None,
            ),
        )
        for prompt, limit in zip(prompts, max_tokens, strict=True)
        for answer in range(fields.num_answers)
    )


def _sampling(
    fields: RequestFields, max_tokens: int, model: ServedModel, forced: StructuredOutputs | None
) -> SamplingParams:
    """What is the same for all choices; `max_tokens` is the least of theirs."""
    defaults = model.defaults

    def given(value: float | None, default: float) -> float:
        return default if value is None else value

    sampling = SamplingParams(
        temperature=given(fields.temperature, defaults.temperature),
        top_p=max(given(fields.top_p, defaults.top_p), _LEAST_TOP_P),
        top_k=max(0, defaults.top_k if fields.top_k is None else fields.top_k),
        min_p=given(fields.min_p, defaults.min_p),
        repetition_penalty=given(fields.repetition_penalty, defaults.repetition_penalty),
        presence_penalty=fields.presence_penalty or 0.0,
        frequency_penalty=fields.frequency_penalty or 0.0,
        logit_bias=fields.biases,
        bad_words_token_ids=model.encode_bad_words(fields.bad_words or ()),
        allowed_token_ids=tuple(fields.allowed_token_ids) if fields.allowed_token_ids else None,
        logprobs=_num_logprobs(fields),
        max_tokens=max_tokens,
        min_tokens=fields.min_tokens or 0,
        stop_token_ids=tuple(fields.stop_token_ids or ()),
        ignore_eos=bool(fields.ignore_eos),
        structured_outputs=forced or fields.output_constraint,
    )
    if sampling.min_tokens > max_tokens:
        raise InvalidRequestError(
            f"min_tokens is {sampling.min_tokens}, but at most {max_tokens} tokens can be generated",
            param="min_tokens",
        )
    check_sampling(sampling, model.tokenizer.vocab_size)
    return sampling


def _num_logprobs(fields: RequestFields) -> int | None:
    # The best answers are found by the log probabilities of their tokens.
    is_ranked = fields.num_answers > (fields.n or 1)
    return 0 if fields.num_logprobs is None and is_ranked else fields.num_logprobs
