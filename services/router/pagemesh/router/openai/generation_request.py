"""From a request's fields and its prompts' ids to what the generation path is asked for."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from pagemesh.config import ApiConfig
from pagemesh.errors import InvalidRequestError
from pagemesh.router.call import Call
from pagemesh.router.generation.request import GenerationRequest
from pagemesh.router.openai.fields import RequestFields
from pagemesh.router.openai.sampling import make_choices
from pagemesh.router.served_model import ServedModel
from pagemesh.sampling.structured.outputs import StructuredOutputs
from pagemesh.tokenizer.thought_span import ThoughtMarks

_WHOLE_INTERVAL: Final = 64
"""Tokens that are read together for an answer that is not streamed: of more, the text would take too long."""


def make_request(
    call: Call,
    model: ServedModel,
    fields: RequestFields,
    prompts: Sequence[Sequence[int]],
    max_tokens: Sequence[int],
    *,
    is_open_ended: bool = False,
    markers: frozenset[str] = frozenset(),
    forced: StructuredOutputs | None = None,
    form_field: str | None = None,
    thought_marks: ThoughtMarks | None = None,
) -> GenerationRequest:
    """The request for all prompts.

    `is_open_ended` says that the context alone limits the answers. `markers` are special tokens that
    whoever reads the answer must see in its text; `forced` is what the answer must look like for reasons of
    the endpoint's own, and `form_field` the field that it comes from; `thought_marks` are those of its thoughts.
    """
    _check_limits(fields, model.api)
    return GenerationRequest(
        call=call,
        choices=make_choices(prompts, max_tokens, fields, model, forced),
        num_prompts=len(prompts),
        stop=fields.stop_strings,
        priority=fields.priority or 0,
        is_open_ended=is_open_ended,
        cache_salt=fields.cache_salt or "",
        includes_stop=bool(fields.include_stop_str_in_output),
        hidden_token_ids=frozenset()
        if fields.skip_special_tokens is False
        else hidden_tokens(model, markers),
        stream_interval=_stream_interval(fields),
        form_field=form_field or fields.form_field,
        thought_marks=thought_marks,
    )


def _check_limits(fields: RequestFields, api: ApiConfig) -> None:
    """Raise InvalidRequestError for more than the settings allow."""
    # A body has one of each group.
    of_answers = ("logprobs", "top_logprobs")
    likeliest = next((name for name in of_answers[::-1] if getattr(fields, name, None)), "logprobs")
    for name, value, most, setting in (
        ("n", fields.n, api.max_choices, "--max-choices"),
        ("best_of", fields.num_answers, api.max_choices, "--max-choices"),
        (likeliest, fields.num_logprobs, api.max_logprobs, "--max-logprobs"),
        ("prompt_logprobs", fields.prompt_logprobs, api.max_logprobs, "--max-logprobs"),
    ):
        if value is not None and value > most:
            raise InvalidRequestError(
                f"{name} is {value}, but must be at most {most} (the router's {setting})",
                param=name,
            )
    if len(fields.stop_strings) > api.max_stop_strings:
        raise InvalidRequestError(
            f"stop has {len(fields.stop_strings)} strings, but at most {api.max_stop_strings} are allowed"
            " (the router's --max-stop-strings)",
            param="stop",
        )


def _stream_interval(fields: RequestFields) -> int:
    interval = fields.stream_interval or 1
    # Nobody waits for single tokens, unless one may end the answer that its worker would go on with.
    is_told_whole = not fields.stream and not fields.stop_strings
    return max(interval, _WHOLE_INTERVAL) if is_told_whole else interval


def hidden_tokens(model: ServedModel, markers: frozenset[str]) -> frozenset[int] | None:
    """Special tokens that have no text where `markers` have one; None for all of them."""
    if not markers:
        return None
    tokenizer = model.tokenizer
    return tokenizer.special_token_ids - {tokenizer.added_token_id(marker) for marker in markers}
