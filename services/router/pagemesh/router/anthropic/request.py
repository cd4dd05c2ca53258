"""The bodies of POST /v1/messages and POST /v1/messages/count_tokens."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Final, Literal

import pydantic
from pydantic import Field

from pagemesh.errors import InvalidRequestError, ResponseNotFoundError, UnsupportedError
from pagemesh.router.anthropic.content import Message, TextBlock, joined, refuse_unreadable
from pagemesh.router.anthropic.tools import Tool, ToolChoice, refuse_server_tools, tools_for_chat
from pagemesh.router.openai.chat_messages import MAX_MESSAGES
from pagemesh.router.openai.fields import MAX_INT32, check_fields, parse_object, shown
from pagemesh.router.openai.lax_types import LAX, Truth

_UNSUPPORTED: Final[Mapping[str, tuple[object, ...]]] = {
    "compaction": (None,),
    "container": (None,),
    "context_management": (None,),
    "inference_geo": (None,),
    "mcp_servers": (None, []),
}
"""Fields that ask for something that cannot be done here, with the values that do not."""

MIN_THINKING_TOKENS: Final = 1024
"""Anthropic's least budget for thoughts."""


class Thinking(pydantic.BaseModel):
    """The object `thinking`. A budget is checked and otherwise left to the model."""

    model_config = pydantic.ConfigDict(strict=True)

    type: Literal["enabled", "adaptive", "disabled"]
    budget_tokens: Annotated[int, Field(ge=MIN_THINKING_TOKENS, le=MAX_INT32), LAX] | None = None
    display: Literal["summarized", "omitted"] | None = None


class OutputFormat(pydantic.BaseModel):
    """The object `output_config.format`, and `output_format`, which was its name in a beta."""

    model_config = pydantic.ConfigDict(strict=True)

    type: Literal["json_schema"]
    schema_: dict[str, Any] = Field(alias="schema")


class OutputConfig(pydantic.BaseModel):
    """The object `output_config`."""

    model_config = pydantic.ConfigDict(strict=True)

    format: OutputFormat | None = None
    effort: Literal["low", "medium", "high", "xhigh", "max"] | None = None


class Metadata(pydantic.BaseModel):
    """The object `metadata`."""

    model_config = pydantic.ConfigDict(strict=True)

    user_id: str | None = None


class Thread(pydantic.BaseModel):
    """The object `thread`: whether the server shall keep the conversation, or has kept it."""

    model_config = pydantic.ConfigDict(strict=True)

    type: Literal["create", "continue"]
    previous_message_id: str | None = None


class PromptFields(pydantic.BaseModel):
    """What a prompt is made of; all that is needed to count its tokens."""

    model_config = pydantic.ConfigDict(strict=True, allow_inf_nan=False)

    model: str | None = None
    messages: Annotated[list[Message], Field(min_length=1, max_length=MAX_MESSAGES)]
    system: str | list[TextBlock] | None = None
    tools: list[Tool] | None = None
    tool_choice: ToolChoice | None = None
    thinking: Thinking | None = None
    output_config: OutputConfig | None = None
    output_format: OutputFormat | None = None
    thread: Thread | None = None

    def for_chat(self) -> dict[str, Any]:
        """The fields of a chat request that say the same."""
        messages = [each for message in self.messages for each in message.for_chat()]
        if self.system:
            messages.insert(0, {"role": "system", "content": joined(self.system)})
        chat: dict[str, Any] = {"model": self.model, "messages": messages}
        chat |= tools_for_chat(self.tools, self.tool_choice)
        if messages[-1]["role"] == "assistant":
            # The answer goes on where the last message ends.
            chat |= {"continue_final_message": True, "add_generation_prompt": False}
        if self.thinking is not None:
            does_think = self.thinking.type != "disabled"
            chat["chat_template_kwargs"] = {"enable_thinking": does_think}
        config = self.output_config or OutputConfig()
        if config.effort is not None:
            chat["reasoning_effort"] = config.effort
        wanted = config.format or self.output_format
        if wanted is not None:
            schema = {"name": "output", "schema": wanted.schema_, "strict": True}
            chat["response_format"] = {"type": "json_schema", "json_schema": schema}
        return chat


class MessagesRequest(PromptFields):
    """A request for the next message."""

    max_tokens: Annotated[int, Field(ge=1, le=MAX_INT32), LAX]
    stop_sequences: list[str] | None = None
    temperature: Annotated[float, LAX] | None = None
    top_p: Annotated[float, LAX] | None = None
    top_k: Annotated[int, LAX] | None = None
    stream: Truth | None = None
    metadata: Metadata | None = None
    service_tier: Literal["auto", "standard_only"] | None = None

    def for_chat(self) -> dict[str, Any]:
        """The fields of a chat request that say the same."""
        chat = super().for_chat()
        chat["max_completion_tokens"] = self.max_tokens
        chat["stop"] = self.stop_sequences or None
        for name in ("temperature", "top_p", "top_k", "stream"):
            chat[name] = getattr(self, name)
        if self.metadata is not None:
            chat["user"] = self.metadata.user_id
        return chat


def parse_messages_request(body: bytes) -> tuple[MessagesRequest, dict[str, Any]]:
    """Read and check a body, which comes along; InvalidRequestError or UnsupportedError names the field."""
    raw = _read(body)
    fields = check_fields(MessagesRequest, raw)
    thinking = fields.thinking
    if thinking is not None and thinking.type == "enabled":
        if thinking.budget_tokens is None:
            raise InvalidRequestError(
                "thinking.budget_tokens is missing", param="thinking.budget_tokens"
            )
        if thinking.budget_tokens >= fields.max_tokens:
            raise InvalidRequestError(
                f"thinking.budget_tokens is {thinking.budget_tokens}, but must be less than max_tokens,"
                f" which is {fields.max_tokens}",
                param="thinking.budget_tokens",
            )
    return fields, raw


def parse_prompt(body: bytes) -> PromptFields:
    """Read and check the body of a count; raises as for messages."""
    return check_fields(PromptFields, _read(body))


def _read(body: bytes) -> dict[str, Any]:
    raw = parse_object(body)
    for name, neutral in _UNSUPPORTED.items():
        if raw.get(name) not in neutral:
            raise UnsupportedError(
                f"{name} is not supported (it is {shown(raw[name])})", param=name
            )
    _refuse_to_continue(raw.get("thread"))
    refuse_server_tools(raw.get("tools"))
    refuse_unreadable(raw.get("messages"))
    return raw


def _refuse_to_continue(thread: Any) -> None:
    """No conversation is kept: clients that hear so send the whole of it once more."""
    if isinstance(thread, dict) and thread.get("type") == "continue":
        message_id = thread.get("previous_message_id")
        raise ResponseNotFoundError(
            f"thread.previous_message_id is {shown(message_id)}, but no conversation is kept here:"
            " send the whole of it",
            param="thread.previous_message_id",
        )
