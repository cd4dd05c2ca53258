"""Fields that chat and completion requests share, and how a faulty body becomes one clear error.

Types are checked strictly, so that a fault is one: true is no number. But "16" and 16.0 are, and "true" is true.
"""

from __future__ import annotations

import json
from typing import Annotated, Any, Literal, NamedTuple, TypeVar

import pydantic
import pydantic_core
from pydantic import Field

from pagemesh.errors import InvalidRequestError
from pagemesh.router.call import Call
from pagemesh.router.openai.lax_types import AS_MEANT, LAX, Truth
from pagemesh.router.openai.structured import (
    ResponseFormat,
    Schema,
    StructuredFields,
    read_structured_outputs,
    structured_field,
)
from pagemesh.sampling.params import MAX_BAD_WORDS, MAX_LOGIT_BIAS, MAX_LOGPROBS, MAX_TEMPERATURE
from pagemesh.sampling.structured.outputs import StructuredOutputs

MAX_INT32 = 2**31 - 1
"""Largest integer of fields that become an int32."""

_MAX_ID_DIGITS = len(str(MAX_INT32))

_MAX_SHOWN_CHARS = 100

StopString = Annotated[str, Field(min_length=1)]
TokenId = Annotated[int, Field(ge=0, le=MAX_INT32)]
Bias = Annotated[float, Field(ge=-MAX_LOGIT_BIAS, le=MAX_LOGIT_BIAS)]


class StreamOptions(pydantic.BaseModel):
    """The `stream_options` object."""

    model_config = pydantic.ConfigDict(strict=True)

    include_usage: Truth | None = None
    continuous_usage_stats: Truth | None = None


class RequestFields(pydantic.BaseModel):
    """Fields with the same meaning in both kinds of request; null means the same as absent.

    Fields that nobody knows are ignored, as vLLM does; `unsupported` refuses those that are known.
    """

    model_config = pydantic.ConfigDict(strict=True, allow_inf_nan=False)

    model: str | None = None
    max_tokens: Annotated[int, Field(ge=1, le=MAX_INT32), LAX] | None = None
    min_tokens: Annotated[int, Field(ge=0, le=MAX_INT32), LAX] | None = None
    temperature: Annotated[float, Field(ge=0, le=MAX_TEMPERATURE), LAX] | None = None
    top_p: Annotated[float, Field(ge=0, le=1), LAX] | None = None
    top_k: Annotated[int, Field(ge=-1, le=MAX_INT32), LAX] | None = None
    min_p: Annotated[float, Field(ge=0, le=1), LAX] | None = None
    repetition_penalty: Annotated[float, Field(gt=0), LAX] | None = None
    presence_penalty: Annotated[float, Field(ge=-2, le=2), LAX] | None = None
    frequency_penalty: Annotated[float, Field(ge=-2, le=2), LAX] | None = None
    logit_bias: Annotated[dict[str, Bias], LAX] | None = None
    bad_words: Annotated[list[StopString], Field(max_length=MAX_BAD_WORDS)] | None = None
    allowed_token_ids: Annotated[list[TokenId], Field(min_length=1, fail_fast=True), LAX] | None = (
        None
    )
    seed: Annotated[int, Field(ge=-(2**63), le=2**63 - 1), LAX] | None = None
    stop: StopString | list[StopString] | None = None
    stop_token_ids: Annotated[list[TokenId], LAX] | None = None
    ignore_eos: Truth | None = None
    response_format: ResponseFormat | None = None
    structured_outputs: StructuredFields | None = None
    guided_json: Schema | None = None
    guided_regex: str | None = None
    guided_choice: list[str] | None = None
    guided_grammar: str | None = None
    guided_whitespace_pattern: str | None = None
    n: Annotated[int, Field(ge=1, le=MAX_INT32), LAX] | None = None
    prompt_logprobs: Annotated[int, Field(ge=0, le=MAX_LOGPROBS), LAX] | None = None
    stream: Truth | None = None
    stream_options: StreamOptions | None = None
    stream_interval: Annotated[int, Field(ge=1, le=MAX_INT32), LAX] | None = None
    include_stop_str_in_output: Truth | None = None
    skip_special_tokens: Truth | None = None
    return_token_ids: Truth | None = None
    return_tokens_as_token_ids: Truth | None = None
    add_special_tokens: Truth | None = None
    truncate_prompt_tokens: Annotated[int, Field(ge=-1, le=MAX_INT32), LAX] | None = None
    truncation_side: Literal["left", "right"] | None = None
    priority: Annotated[int, Field(ge=-MAX_INT32, le=MAX_INT32), LAX] | None = None
    cache_salt: Annotated[str, Field(min_length=1)] | None = None
    session_id: str | None = None
    prompt_cache_key: str | None = None
    user: str | None = None

    def within(self, call: Call) -> Call:
        """The call in the session that the body names, unless its header names one."""
        return call.in_session(self.session_id, self.prompt_cache_key, self.user)

    @property
    def num_answers(self) -> int:
        """Answers generated for each prompt."""
        return self.n or 1

    @property
    def num_logprobs(self) -> int | None:
        """Likeliest tokens that are named beside each token of an answer; None without any logprobs."""
        return None

    @property
    def num_prompt_logprobs(self) -> int | None:
        """Likeliest tokens that are looked for beside each token of a prompt; None without any logprobs."""
        return self.prompt_logprobs

    @property
    def stop_strings(self) -> tuple[str, ...]:
        """`stop` as a tuple, whichever form it had."""
        if isinstance(self.stop, str):
            return (self.stop,)
        return tuple(self.stop or ())

    @property
    def biases(self) -> dict[int, float]:
        """`logit_bias` by token id; its names are those of JSON, strings."""
        biases = {}
        for name, bias in (self.logit_bias or {}).items():
            # Python reads no number of thousands of digits.
            if not (name.isascii() and name.isdecimal()) or len(name) > _MAX_ID_DIGITS:
                raise InvalidRequestError(
                    f"logit_bias has the key {shown(name)}, which is no token id",
                    param="logit_bias",
                )
            biases[int(name)] = bias
        return biases

    @property
    def output_constraint(self) -> StructuredOutputs | None:
        """What the answer must look like, whichever field says it; None for any answer."""
        return read_structured_outputs(self.response_format, self.structured_outputs, self._guided)

    @property
    def form_field(self) -> str:
        """Name of the field that says so."""
        found = structured_field(self.response_format, self.structured_outputs, self._guided)
        return found or "structured_outputs"

    @property
    def _guided(self) -> dict[str, Any]:
        names = ("json", "regex", "choice", "grammar", "whitespace_pattern")
        return {name: getattr(self, f"guided_{name}") for name in names}

    @property
    def include_usage(self) -> bool:
        """Whether a stream ends with the token counts."""
        return self.stream_options is not None and bool(self.stream_options.include_usage)

    @property
    def has_continuous_usage(self) -> bool:
        """Whether every chunk of a stream has the token counts so far; only beside those at the end."""
        options = self.stream_options
        return self.include_usage and options is not None and bool(options.continuous_usage_stats)


def parse_object(body: bytes) -> dict[str, Any]:
    """The JSON object in a body; raises InvalidRequestError for anything else."""
    try:
        value = pydantic_core.from_json(body, allow_inf_nan=False)
    except ValueError as error:
        # The gateway hands on nothing of a body that is no gzip under a content-encoding that says so.
        reason = (
            error if body else "it is empty, or compressed otherwise than content-encoding says"
        )
        raise InvalidRequestError(f"the body is not valid JSON: {reason}") from error
    if not isinstance(value, dict):
        raise InvalidRequestError(f"the body must be a JSON object, not {shown(value)}")
    return value


Fields = TypeVar("Fields", bound=RequestFields)


Model = TypeVar("Model", bound=pydantic.BaseModel)


def check_fields(kind: type[Model], raw: dict[str, Any]) -> Model:
    """Check a JSON object; raises InvalidRequestError naming the first faulty field and its value."""
    try:
        return kind.model_validate(raw)
    except pydantic.ValidationError as error:
        raise _translate(error, raw) from error


def validate(kind: type[Fields], raw: dict[str, Any]) -> Fields:
    """The same for a request to generate, with what its fields must agree on."""
    fields = check_fields(kind, raw)
    if raw.get("stream_options") and not fields.stream:
        raise InvalidRequestError(
            "stream_options can only be given when stream is true", param="stream_options"
        )
    if fields.prompt_logprobs is not None and fields.stream:
        raise InvalidRequestError(
            "prompt_logprobs are not available when stream is true", param="prompt_logprobs"
        )
    return fields


def shown(value: object) -> str:
    """A JSON value as it stands in messages: short, whatever the client sent."""
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= _MAX_SHOWN_CHARS else f"{text[:_MAX_SHOWN_CHARS]}…"


class _Fault(NamedTuple):
    param: str

    depth: tuple[int, bool]
    """Steps into the body, and whether the value was read as its type first."""

    reason: str
    value: object


def _translate(error: pydantic.ValidationError, raw: dict[str, Any]) -> InvalidRequestError:
    """The first fault in words.

    A field with several forms has a fault for each; those that got deepest say what was meant.
    """
    details = error.errors(include_url=False)
    same_field = [
        _fault(detail, raw) for detail in details if detail["loc"][0] == details[0]["loc"][0]
    ]
    depth = max(fault.depth for fault in same_field)
    faults = [fault for fault in same_field if fault.depth == depth]
    first = faults[0]
    if first.reason == "missing":
        return InvalidRequestError(f"{first.param} is missing", param=first.param)
    reasons = " or ".join(dict.fromkeys(f.reason for f in faults if f.param == first.param))
    return InvalidRequestError(
        f"{first.param} is {shown(first.value)}: {reasons}", param=first.param
    )


def _fault(detail: pydantic_core.ErrorDetails, raw: dict[str, Any]) -> _Fault:
    """One of pydantic's errors; its place is read along the input, as unions put tags in between."""
    param, steps, is_read = "", 0, AS_MEANT not in detail["loc"]
    value: Any = raw
    for step in detail["loc"]:
        if isinstance(value, dict) and step in value:
            value, param = value[step], f"{param}.{step}"
        elif isinstance(value, list) and isinstance(step, int) and step < len(value):
            value, param = value[step], f"{param}[{step}]"
        else:
            continue
        steps += 1
    if detail["type"] == "missing":
        name = f"{param}.{detail['loc'][-1]}"
        return _Fault(name.removeprefix("."), (steps + 1, is_read), "missing", None)
    return _Fault(param.removeprefix("."), (steps, is_read), detail["msg"], detail["input"])
