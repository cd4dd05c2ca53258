"""Conversations in the messages of `Inference`: what chat completions would be asked for the same."""

from __future__ import annotations

from typing import Any, Final

from pagemesh.errors import InvalidRequestError
from pagemesh.router.chat.renaming import in_words_of, renaming
from pagemesh.router.openai.chat_request import ChatRequest, read_chat_request
from pagemesh.tokenizer.message_shape import read_object
from pagemesh.v1 import inference_pb2

_ROLES: Final = ("system", "user", "assistant", "tool")
_CHOICES: Final = {
    inference_pb2.TOOL_CHOICE_NONE: "none",
    inference_pb2.TOOL_CHOICE_AUTO: "auto",
    inference_pb2.TOOL_CHOICE_REQUIRED: "required",
}
CHAT_NAMES: Final = renaming(
    (r"tool_choice\.function\.name", "chat.tool_name"),
    (r"chat_template_kwargs", "chat.template_variables"),
    (r"parallel_tool_calls", "chat.single_tool_call"),
    (r"(messages\[\d+\]\.tool_calls\[\d+\]|tools\[\d+\])\.function", r"chat.\1"),
    (r"(messages|tools|tool_choice|continue_final_message)", r"chat.\1"),
)
"""Fields of chat completions in the messages of `Inference`."""


def read_chat(chat: inference_pb2.ChatPrompt) -> ChatRequest:
    """The fields of a conversation; InvalidRequestError and UnsupportedError name those of the message."""
    if not chat.messages:
        raise InvalidRequestError("chat.messages is empty", param="chat.messages")
    raw: dict[str, Any] = {
        "messages": [_message(index, each) for index, each in enumerate(chat.messages)],
        "parallel_tool_calls": not chat.single_tool_call,
        "continue_final_message": chat.continue_final_message,
    }
    if chat.continue_final_message:
        raw["add_generation_prompt"] = False
    if chat.tools:
        raw["tools"] = [_tool(index, tool) for index, tool in enumerate(chat.tools)]
    if chat.tool_name and chat.tool_choice:
        raise InvalidRequestError(
            "chat.tool_name and chat.tool_choice are both set", param="chat.tool_name"
        )
    if chat.tool_name:
        raw["tool_choice"] = {"type": "function", "function": {"name": chat.tool_name}}
    elif chat.tool_choice:
        raw["tool_choice"] = _CHOICES.get(chat.tool_choice, chat.tool_choice)
    if chat.template_variables:
        raw["chat_template_kwargs"] = _object(chat.template_variables, "chat.template_variables")
    with in_words_of(CHAT_NAMES):
        fields = read_chat_request(raw)
        # Read once for its errors, which come too late elsewhere.
        _ = fields.tool_use
    return fields


def _message(index: int, message: inference_pb2.ChatMessage) -> dict[str, Any]:
    if message.role not in _ROLES:
        raise InvalidRequestError(
            f"chat.messages[{index}].role is {message.role!r}, but must be system, user, assistant "
            "or tool",
            param=f"chat.messages[{index}].role",
        )
    found: dict[str, Any] = {"role": message.role, "content": message.content}
    if message.tool_calls:
        # As in answers of calls alone: there is no null on the wire.
        found["content"] = message.content or None
        found["tool_calls"] = [
            {"id": call.id or None, "function": {"name": call.name, "arguments": call.arguments}}
            for call in message.tool_calls
        ]
    for name in ("tool_call_id", "reasoning", "name"):
        if value := getattr(message, name):
            found[name] = value
    return found


def _tool(index: int, tool: inference_pb2.Tool) -> dict[str, Any]:
    function: dict[str, Any] = {"name": tool.name}
    if tool.description:
        function["description"] = tool.description
    if tool.parameters:
        function["parameters"] = _object(tool.parameters, f"chat.tools[{index}].parameters")
    if tool.strict:
        function["strict"] = True
    return {"type": "function", "function": function}


def _object(text: str, field: str) -> dict[str, Any]:
    value = read_object(text)
    if value is None:
        raise InvalidRequestError(
            f"{field} is {text[:100]!r}, but must be the text of a JSON object", param=field
        )
    return value
