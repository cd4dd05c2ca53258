"""The messages of a conversation: what they may be, and what chat templates see of them."""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal

import pydantic
from pydantic import Field

from pagemesh.errors import InvalidRequestError, UnsupportedError

MAX_MESSAGES: Final = 16_384
"""More than fit into any context; megabytes of empty ones would keep the event loop busy for seconds."""

_WITH_CONTENT: Final = ("system", "developer", "user", "tool")
"""Roles whose messages say something; an assistant's may only call tools."""

_OTHER_PARTS: Final = ("image_url", "input_audio", "audio_url", "video_url", "file")


class TextPart(pydantic.BaseModel):
    """A piece of a message's content."""

    model_config = pydantic.ConfigDict(strict=True)

    type: Literal["text"]
    text: str


class RefusalPart(pydantic.BaseModel):
    """A piece of an assistant's message in which it declined: for the model, text like any other."""

    model_config = pydantic.ConfigDict(strict=True)

    type: Literal["refusal"]
    refusal: str

    @property
    def text(self) -> str:
        """What it said."""
        return self.refusal


class CalledFunction(pydantic.BaseModel):
    """What an assistant called, and with what."""

    model_config = pydantic.ConfigDict(strict=True)

    name: Annotated[str, Field(min_length=1)]
    arguments: str | dict[str, Any] | None = None


class ToolCall(pydantic.BaseModel):
    """One call in an assistant's message."""

    model_config = pydantic.ConfigDict(strict=True)

    id: str | None = None
    type: Literal["function"] = "function"
    function: CalledFunction

    def for_template(self) -> dict[str, Any]:
        """The call, with its arguments as they were given."""
        function = {"name": self.function.name, "arguments": self.function.arguments}
        call: dict[str, Any] = {"type": "function", "function": function}
        return call if self.id is None else {"id": self.id, **call}


class Message(pydantic.BaseModel):
    """One message."""

    model_config = pydantic.ConfigDict(strict=True)

    role: Annotated[str, Field(min_length=1)]
    """One of OpenAI's, or one that the chat template shows besides."""
    content: str | Annotated[list[TextPart | RefusalPart], Field(min_length=1)] | None = None
    name: str | None = None
    tool_calls: list[ToolCall] | None = None
    tool_call_id: str | None = None
    reasoning: str | None = None
    reasoning_content: str | None = None
    refusal: str | None = None

    @property
    def text(self) -> str:
        """The content as one text; without any, what an assistant said instead."""
        if self.content is None or isinstance(self.content, str):
            return self.content or self.refusal or ""
        return "\n".join(part.text for part in self.content)

    @property
    def has_other_role(self) -> bool:
        """Whether its role is none of OpenAI's."""
        return self.role not in (*_WITH_CONTENT, "assistant")

    @property
    def thoughts(self) -> str | None:
        """By either name."""
        return self.reasoning if self.reasoning is not None else self.reasoning_content

    def for_template(self) -> dict[str, Any]:
        """The message as it was given, with what models read of it; `MessageShape` does the rest."""
        # "developer" is OpenAI's newer name of the role that templates know as "system".
        role = "system" if self.role == "developer" else self.role
        message: dict[str, Any] = {"role": role}
        if "content" in self.model_fields_set or self.refusal:
            message["content"] = self._content
        if self.name is not None:
            message["name"] = self.name
        if role == "assistant" or self.has_other_role:
            message |= self._of_assistant()
        if (role == "tool" or self.has_other_role) and self.tool_call_id is not None:
            message["tool_call_id"] = self.tool_call_id
        return message

    @property
    def _content(self) -> str | list[dict[str, str]] | None:
        if self.content is None or isinstance(self.content, str):
            return self.refusal if self.content is None else self.content
        return [{"type": "text", "text": part.text} for part in self.content]

    def _of_assistant(self) -> dict[str, Any]:
        found: dict[str, Any] = {}
        if self.tool_calls:
            found["tool_calls"] = [call.for_template() for call in self.tool_calls]
        if self.thoughts is not None:
            # Templates know either name.
            found |= {"reasoning": self.thoughts, "reasoning_content": self.thoughts}
        return found


def check_messages(messages: Any) -> None:
    """Name what is valid for OpenAI but cannot be done here, and what is without content.

    Raises UnsupportedError and InvalidRequestError; everything else is left to the types.
    """
    if not isinstance(messages, list) or len(messages) > MAX_MESSAGES:
        return
    for index, message in enumerate(messages):
        if not isinstance(message, dict):
            continue
        where = f"messages[{index}]"
        if message.get("role") == "function":
            raise UnsupportedError(
                f'{where}.role is "function", which was replaced by "tool"', param=f"{where}.role"
            )
        for name in ("function_call", "audio"):
            if message.get(name):
                raise UnsupportedError(f"{where}.{name} is not supported", param=f"{where}.{name}")
        parts = message.get("content")
        if parts is None and message.get("role") in _WITH_CONTENT:
            fault = "null, but must be text" if "content" in message else "missing"
            raise InvalidRequestError(f"{where}.content is {fault}", param=f"{where}.content")
        for position, part in enumerate(parts if isinstance(parts, list) else ()):
            if isinstance(part, dict) and part.get("type") in _OTHER_PARTS:
                param = f"{where}.content[{position}].type"
                raise UnsupportedError(
                    f'{param} is "{part["type"]}", but the model only reads text', param=param
                )
        calls = message.get("tool_calls")
        for position, call in enumerate(calls if isinstance(calls, list) else ()):
            if isinstance(call, dict) and call.get("type") == "custom":
                param = f"{where}.tool_calls[{position}].type"
                raise UnsupportedError(f'{param} is "custom", but must be "function"', param=param)
