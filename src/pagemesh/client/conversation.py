"""From conversations, in OpenAI's form, to the messages of `Inference`."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, Final, Literal

from pagemesh.client.fields import told_as
from pagemesh.errors import InvalidRequestError
from pagemesh.v1 import inference_pb2

Messages = Sequence[Mapping[str, Any]]
"""A conversation: mappings with the keys "role" and "content", and those of OpenAI's messages for calls of tools."""

Tools = Sequence[Mapping[str, Any]]
"""Functions that the model may call: `{"type": "function", "function": {"name": …, "parameters": …}}`."""

ToolChoice = Literal["none", "auto", "required"] | Mapping[str, Any]
"""How the model chooses; `{"type": "function", "function": {"name": …}}` for the one that it must call."""

_CHOICES: Final = {
    "none": inference_pb2.TOOL_CHOICE_NONE,
    "auto": inference_pb2.TOOL_CHOICE_AUTO,
    "required": inference_pb2.TOOL_CHOICE_REQUIRED,
}


def chat_prompt(messages: Messages) -> inference_pb2.ChatPrompt:
    """The message for a conversation; InvalidRequestError where a key is missing or of the wrong type."""
    chat = inference_pb2.ChatPrompt()
    with told_as("messages", messages):
        listed = list(messages)
    for index, message in enumerate(listed):
        try:
            with_calls = "tool_calls" in message
            added = chat.messages.add(role=message["role"])
            added.content = (message.get("content") or "") if with_calls else message["content"]
            for position, call in enumerate(message.get("tool_calls") or ()):
                function = call["function"]
                added.tool_calls.add(
                    index=position,
                    id=call.get("id") or "",
                    name=function["name"],
                    arguments=_text(function.get("arguments")),
                )
            for name in ("tool_call_id", "reasoning", "name"):
                setattr(added, name, message.get(name) or "")
        except KeyError as error:
            raise InvalidRequestError(
                f"messages[{index}] has no {error.args[0]}", param=f"messages[{index}]"
            ) from error
        except (TypeError, ValueError, AttributeError) as error:
            raise InvalidRequestError(
                f"messages[{index}] cannot be sent: {error}", param=f"messages[{index}]"
            ) from error
    return chat


def set_tools(chat: inference_pb2.ChatPrompt, tools: Tools, choice: ToolChoice | None) -> None:
    """Say what may be called, and how to choose; InvalidRequestError where a key is missing."""
    with told_as("tools", tools):
        listed = list(tools)
    for index, tool in enumerate(listed):
        try:
            function = tool["function"]
            chat.tools.add(
                name=function["name"],
                description=function.get("description") or "",
                parameters=_text(function.get("parameters")),
                strict=bool(function.get("strict")),
            )
        except KeyError as error:
            raise InvalidRequestError(
                f"tools[{index}] has no {error.args[0]}", param=f"tools[{index}]"
            ) from error
        except (TypeError, ValueError, AttributeError) as error:
            raise InvalidRequestError(
                f"tools[{index}] cannot be sent: {error}", param=f"tools[{index}]"
            ) from error
    if isinstance(choice, Mapping):
        with told_as("tool_choice", choice):
            chat.tool_name = choice.get("function", {}).get("name")
    elif choice is not None:
        if not isinstance(choice, str) or choice not in _CHOICES:
            raise InvalidRequestError(
                f"tool_choice is {choice!r}, but must be none, auto, required or name a function",
                param="tool_choice",
            )
        chat.tool_choice = _CHOICES[choice]


def _text(value: object) -> str:
    """JSON text, in the order of the keys; what is text already stays as it is."""
    if value is None:
        return ""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
