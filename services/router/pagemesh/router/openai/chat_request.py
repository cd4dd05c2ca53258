"""The body of POST /v1/chat/completions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Final, Literal

from pydantic import Field

from pagemesh.errors import InvalidRequestError
from pagemesh.router.openai.chat_messages import (
    MAX_MESSAGES,
    Message,
    check_messages,
)
from pagemesh.router.openai.chat_tools import (
    MAX_TOOLS,
    FunctionTool,
    ToolChoice,
    ToolUse,
    read_tool_use,
    refuse_other_tools,
)
from pagemesh.router.openai.fields import MAX_INT32, RequestFields, parse_object, validate
from pagemesh.router.openai.lax_types import LAX, Truth
from pagemesh.router.openai.unsupported import refuse_foreign, refuse_unsupported
from pagemesh.sampling.params import MAX_LOGPROBS
from pagemesh.tokenizer.chat_template import RenderOptions

MAX_TEMPLATE_CHARS = 64 * 1024
"""Longest chat template that a request may bring."""


_NO_VARIABLES: Final[Mapping[str, Any]] = {}


class ChatRequest(RequestFields):
    """A valid request for the next message of a conversation."""

    messages: Annotated[list[Message], Field(min_length=1, max_length=MAX_MESSAGES)]
    max_completion_tokens: Annotated[int, Field(ge=1, le=MAX_INT32), LAX] | None = None
    logprobs: Truth | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=MAX_LOGPROBS), LAX] | None = None
    tools: Annotated[list[FunctionTool], Field(max_length=MAX_TOOLS)] | None = None
    tool_choice: ToolChoice | None = None
    parallel_tool_calls: Truth | None = None
    include_reasoning: Truth | None = None
    reasoning_effort: Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"] | None = (
        None
    )
    add_generation_prompt: Truth | None = None
    continue_final_message: Truth | None = None
    documents: list[dict[str, Any]] | None = None
    chat_template: Annotated[str, Field(max_length=MAX_TEMPLATE_CHARS)] | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    return_prompt_text: Truth | None = None
    echo: Truth | None = None

    @property
    def num_logprobs(self) -> int | None:
        """Likeliest tokens that are named beside each token of an answer; None without any logprobs."""
        return (self.top_logprobs or 0) if self.logprobs else None

    @property
    def token_limit(self) -> tuple[str, int | None]:
        """Name and value of the field that limits the answer; the newer name wins."""
        if self.max_completion_tokens is not None:
            return "max_completion_tokens", self.max_completion_tokens
        return "max_tokens", self.max_tokens

    @property
    def tool_use(self) -> ToolUse:
        """What is said about tools."""
        return read_tool_use(self.tools, self.tool_choice)

    def template_messages(self) -> list[dict[str, Any]]:
        """The messages, of which the template's `MessageShape` makes what the template wants."""
        return [message.for_template() for message in self.messages]

    def wants_thoughts(self, defaults: Mapping[str, Any] = _NO_VARIABLES) -> bool | None:
        """Whether the model shall think before it answers; None when nobody says so.

        `defaults` are variables of templates for requests that say nothing of them.
        """
        variables = self._template_variables(defaults)
        said, effort = variables.get("enable_thinking"), variables.get("reasoning_effort")
        if isinstance(said, bool):
            return said
        return None if effort is None else effort != "none"

    def render_options(
        self,
        use: ToolUse,
        *,
        as_parts: bool | None = None,
        defaults: Mapping[str, Any] = _NO_VARIABLES,
    ) -> RenderOptions:
        """With what the conversation is rendered; `as_parts` as there, `defaults` as above."""
        continues = bool(self.continue_final_message)
        return RenderOptions(
            tools=[tool.for_template() for tool in use.shown] or None,
            documents=self.documents,
            add_generation_prompt=not continues and self.add_generation_prompt is not False,
            continue_final_message=continues,
            variables=self._template_variables(defaults),
            as_parts=as_parts,
        )

    def _template_variables(self, defaults: Mapping[str, Any]) -> dict[str, Any]:
        variables = dict(self.chat_template_kwargs or {})
        if self.reasoning_effort is not None:
            # As in vLLM: templates know the one or the other.
            variables.setdefault("enable_thinking", self.reasoning_effort != "none")
            variables["reasoning_effort"] = self.reasoning_effort
        return {**defaults, **variables}


def parse_chat_request(body: bytes) -> ChatRequest:
    """Read and check a body; raises InvalidRequestError or UnsupportedError naming the field."""
    return read_chat_request(parse_object(body))


def read_chat_request(raw: dict[str, Any]) -> ChatRequest:
    """Check a body that is read already, or that another dialect made of its own; raises the same."""
    refuse_unsupported(raw, served=("echo",))
    refuse_foreign(raw, "best_of")
    check_messages(raw.get("messages"))
    refuse_other_tools(raw)
    fields = validate(ChatRequest, raw)
    if fields.top_logprobs and not fields.logprobs:
        raise InvalidRequestError(
            "top_logprobs can only be given when logprobs is true", param="top_logprobs"
        )
    if fields.continue_final_message and fields.add_generation_prompt:
        raise InvalidRequestError(
            "continue_final_message and add_generation_prompt cannot both be true",
            param="continue_final_message",
        )
    return fields
