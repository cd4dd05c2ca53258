"""The `messages` of POST /v1/messages as messages of a chat request."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Annotated, Any, Final, Literal

import pydantic
from pydantic import Field

from pagemesh.errors import InvalidRequestError, UnsupportedError
from pagemesh.router.openai.fields import shown

_READABLE: Final = {
    "system": ("text",),
    "user": ("text", "tool_result"),
    "assistant": ("text", "thinking", "redacted_thinking", "tool_use"),
}
"""Types of blocks by the role of their message."""


TOOL_ID_PREFIX: Final = "toolu_"
"""What ids of calls begin with for Anthropic's clients; for models they do not, some of which take nine characters."""


class _Block(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(strict=True)


class TextBlock(_Block):
    """A piece of text."""

    type: Literal["text"]
    text: str


class ThinkingBlock(_Block):
    """What the model thought; its signature is not looked at."""

    type: Literal["thinking"]
    thinking: str


class RedactedThinkingBlock(_Block):
    """Thoughts that nobody can read."""

    type: Literal["redacted_thinking"]


class ToolUseBlock(_Block):
    """A call that the model made."""

    type: Literal["tool_use"]
    id: Annotated[str, Field(min_length=1)]
    name: Annotated[str, Field(min_length=1)]
    input: dict[str, Any]


class ToolResultBlock(_Block):
    """What a called tool gave."""

    type: Literal["tool_result"]
    tool_use_id: Annotated[str, Field(min_length=1)]
    content: str | list[TextBlock] | None = None


Block = Annotated[
    TextBlock | ThinkingBlock | RedactedThinkingBlock | ToolUseBlock | ToolResultBlock,
    Field(discriminator="type"),
]


class Message(_Block):
    """One message."""

    role: Literal["system", "user", "assistant"]
    content: str | list[Block]

    def for_chat(self) -> list[dict[str, Any]]:
        """The message in the form of chat completions: results of tools are messages of their own."""
        if isinstance(self.content, str):
            return [{"role": self.role, "content": self.content}]
        if self.role == "assistant":
            return [_assistant(self.content)]
        return _others(self.role, self.content)


def joined(content: str | Sequence[TextBlock] | None) -> str:
    """All text; pieces are joined by line breaks, as in chat completions."""
    if content is None or isinstance(content, str):
        return content or ""
    return "\n".join(block.text for block in content)


def _assistant(blocks: Sequence[Block]) -> dict[str, Any]:
    texts = [block for block in blocks if isinstance(block, TextBlock)]
    thoughts = [block.thinking for block in blocks if isinstance(block, ThinkingBlock)]
    calls = [
        {
            "id": block.id.removeprefix(TOOL_ID_PREFIX),
            "type": "function",
            "function": {
                "name": block.name,
                "arguments": json.dumps(block.input, ensure_ascii=False),
            },
        }
        for block in blocks
        if isinstance(block, ToolUseBlock)
    ]
    message: dict[str, Any] = {
        "role": "assistant",
        "content": joined(texts) if texts or not calls else None,
    }
    if thoughts:
        message["reasoning_content"] = "\n".join(thoughts)
    if calls:
        message["tool_calls"] = calls
    return message


def _others(role: str, blocks: Sequence[Block]) -> list[dict[str, Any]]:
    messages: list[dict[str, Any]] = []
    texts: list[TextBlock] = []
    for block in blocks:
        if isinstance(block, TextBlock):
            texts.append(block)
        elif isinstance(block, ToolResultBlock):
            # Templates want results right behind the calls, before the user speaks again.
            content = joined(block.content)
            call_id = block.tool_use_id.removeprefix(TOOL_ID_PREFIX)
            messages.append({"role": "tool", "tool_call_id": call_id, "content": content})
    if texts or not messages:
        messages.append({"role": role, "content": joined(texts)})
    return messages


def refuse_unreadable(messages: Any) -> None:
    """Name blocks that cannot be read by their type; every other fault is left to the fields' check."""
    for index, message in enumerate(messages if isinstance(messages, list) else ()):
        if not isinstance(message, dict):
            continue
        role = message.get("role")
        _refuse_blocks(message.get("content"), f"messages[{index}].content", role)


def _refuse_blocks(blocks: Any, where: str, role: Any) -> None:
    readable = _READABLE.get(role) if isinstance(role, str) else None
    for index, block in enumerate(blocks if isinstance(blocks, list) else ()):
        kind = block.get("type") if isinstance(block, dict) else None
        if readable is None or not isinstance(kind, str):
            continue
        param = f"{where}[{index}].type"
        if kind in sum(_READABLE.values(), ()) and kind not in readable:
            raise InvalidRequestError(
                f"{param} is {shown(kind)}, which a message of the role {role} cannot have",
                param=param,
            )
        if kind not in readable:
            raise UnsupportedError(
                f"{param} is {shown(kind)}, but the model only reads {', '.join(readable)}",
                param=param,
            )
        if kind == "tool_result":
            _refuse_blocks(block.get("content"), f"{where}[{index}].content", "system")
