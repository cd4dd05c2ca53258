"""A request for a response as the fields of a chat request."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from pagemesh.router.chat.extra_fields import extra_fields
from pagemesh.router.responses_api.input_items import read_input
from pagemesh.router.responses_api.request import ResponsesRequest, TextConfig
from pagemesh.router.responses_api.tools import Tool, read_tool_choice

_SAME: Final = (
    "metadata",
    "model",
    "parallel_tool_calls",
    "prompt_cache_key",
    "safety_identifier",
    "service_tier",
    "stop",
    "stream",
    "temperature",
    "top_p",
    "user",
)
"""Fields that mean the same in chat completions; `stop` is vLLM's addition."""


def chat_fields(
    fields: ResponsesRequest, raw: Mapping[str, Any], tools: Sequence[Tool]
) -> dict[str, Any]:
    """The chat request that asks for the same; errors name the response's fields."""
    chat = extra_fields(raw) | {name: raw[name] for name in _SAME if name in raw}
    chat["messages"] = read_input(fields.instructions, fields.input)
    choice = read_tool_choice(fields.tool_choice)
    if tools:
        chat["tools"] = [tool.for_chat() for tool in tools]
    # Clients say it without any tools, too.
    if choice is not None and (tools or choice != "auto"):
        chat["tool_choice"] = choice
    if fields.max_output_tokens is not None:
        chat["max_completion_tokens"] = fields.max_output_tokens
    if fields.has_logprobs:
        chat |= {"logprobs": True, "top_logprobs": fields.top_logprobs or 0}
    if fields.reasoning is not None and fields.reasoning.effort is not None:
        chat["reasoning_effort"] = fields.reasoning.effort
    return chat | _text_fields(fields.text)


def _text_fields(text: TextConfig | None) -> dict[str, Any]:
    found: dict[str, Any] = {}
    if text is None:
        return found
    if text.verbosity not in (None, "medium"):
        found["verbosity"] = text.verbosity
    if text.format is not None and text.format.type != "text":
        found["response_format"] = {"type": text.format.type}
    if text.format is not None and text.format.type == "json_schema":
        schema = text.format.model_dump(by_alias=True, exclude={"type"}, exclude_none=True)
        found["response_format"]["json_schema"] = schema
    return found
