"""The body of POST /v1/responses."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Final, Literal

import pydantic
from pydantic import Field

from pagemesh.errors import InvalidRequestError, UnsupportedError
from pagemesh.router.openai.fields import MAX_INT32, check_fields, parse_object, shown
from pagemesh.router.openai.lax_types import LAX, Truth
from pagemesh.sampling.params import MAX_LOGPROBS

MAX_ITEMS: Final = 16_384
"""More than fit into any context; megabytes of empty ones would keep the event loop busy for seconds."""

LOGPROBS: Final = "message.output_text.logprobs"
"""What `include` has when an answer is to have log probabilities."""

_INCLUDABLE: Final = (
    LOGPROBS,
    # Thoughts are in the answer as they are, and are read as they were given.
    "reasoning.encrypted_content",
    # Of tools that OpenAI runs itself, which are refused; so there is nothing to include.
    "code_interpreter_call.outputs",
    "computer_call_output.output.image_url",
    "file_search_call.results",
    "message.input_image.image_url",
    "web_search_call.action.sources",
    "web_search_call.results",
)

_STATEFUL: Final[Mapping[str, tuple[object, ...]]] = {
    "background": (None, False),
    "conversation": (None,),
    "previous_response_id": (None,),
    "prompt": (None,),
    "store": (None, False),
}
"""Fields that need answers or prompts to be kept, with the values that do not."""

_UNSUPPORTED: Final[Mapping[str, tuple[object, ...]]] = {
    "context_management": (None, []),
    "moderation": (None,),
}


class TextFormat(pydantic.BaseModel):
    """The object `text.format`."""

    model_config = pydantic.ConfigDict(strict=True)

    type: Literal["text", "json_object", "json_schema"]
    name: str | None = None
    schema_: dict[str, Any] | None = Field(None, alias="schema")
    description: str | None = None
    strict: Truth | None = None


class TextConfig(pydantic.BaseModel):
    """The object `text`."""

    model_config = pydantic.ConfigDict(strict=True)

    format: TextFormat | None = None
    verbosity: Literal["low", "medium", "high"] | None = None


class Reasoning(pydantic.BaseModel):
    """The object `reasoning`. Summaries are never written: the thoughts themselves are in the answer."""

    model_config = pydantic.ConfigDict(strict=True)

    effort: Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"] | None = None
    summary: Literal["auto", "concise", "detailed"] | None = None
    generate_summary: Literal["auto", "concise", "detailed"] | None = None


class StreamOptions(pydantic.BaseModel):
    """The object `stream_options`. Nothing is ever added to hide the lengths of tokens."""

    model_config = pydantic.ConfigDict(strict=True)

    include_obfuscation: Truth | None = None


class ResponsesRequest(pydantic.BaseModel):
    """The fields with a meaning of their own; those of sampling are a chat request's."""

    model_config = pydantic.ConfigDict(strict=True, allow_inf_nan=False)

    input: str | Annotated[list[dict[str, Any]], Field(min_length=1, max_length=MAX_ITEMS)]
    instructions: str | None = None
    tools: list[dict[str, Any]] | None = None
    tool_choice: str | dict[str, Any] | None = None
    parallel_tool_calls: Truth | None = None
    max_output_tokens: Annotated[int, Field(ge=1, le=MAX_INT32), LAX] | None = None
    max_tool_calls: Annotated[int, Field(ge=1, le=MAX_INT32), LAX] | None = None
    text: TextConfig | None = None
    reasoning: Reasoning | None = None
    include: list[str] | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=MAX_LOGPROBS), LAX] | None = None
    store: Truth | None = None
    background: Truth | None = None
    stream: Truth | None = None
    stream_options: StreamOptions | None = None
    truncation: Literal["auto", "disabled"] | None = None
    metadata: dict[str, str] | None = None
    service_tier: str | None = None
    user: str | None = None
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None

    @property
    def has_logprobs(self) -> bool:
        """Whether the answer's tokens come with log probabilities."""
        return LOGPROBS in (self.include or ())


def parse_responses_request(body: bytes) -> tuple[ResponsesRequest, dict[str, Any]]:
    """Read and check a body, which comes along; InvalidRequestError or UnsupportedError names the field."""
    raw = parse_object(body)
    for name, neutral in _STATEFUL.items():
        if raw.get(name) not in neutral:
            raise UnsupportedError(
                f"{name} is {shown(raw[name])}, but this mesh does not store responses, conversations or"
                " prompts: send the whole conversation as input",
                param=name,
            )
    for name, neutral in _UNSUPPORTED.items():
        if raw.get(name) not in neutral:
            raise UnsupportedError(
                f"{name} is not supported (it is {shown(raw[name])})", param=name
            )
    fields = check_fields(ResponsesRequest, raw)
    if fields.stream_options is not None and not fields.stream:
        raise InvalidRequestError(
            "stream_options can only be given when stream is true", param="stream_options"
        )
    _check_format(fields.text)
    for index, name in enumerate(fields.include or ()):
        if name not in _INCLUDABLE:
            raise InvalidRequestError(
                f"include[{index}] is {shown(name)}, but must be one of {', '.join(_INCLUDABLE)}",
                param=f"include[{index}]",
            )
    return fields, raw


def _check_format(text: TextConfig | None) -> None:
    form = text.format if text is not None else None
    if form is None or form.type != "json_schema":
        return
    for name, value in (("name", form.name), ("schema", form.schema_)):
        if value is None:
            raise InvalidRequestError(f"text.format.{name} is missing", param=f"text.format.{name}")
