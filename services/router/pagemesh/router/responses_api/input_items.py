"""The `input` of POST /v1/responses as messages of a chat request."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Annotated, Any, Final, Literal

import pydantic
from pydantic import Field

from pagemesh.errors import InvalidRequestError, UnsupportedError
from pagemesh.router.openai.fields import check_fields, shown
from pagemesh.router.responses_api.tools import custom_arguments

_MEDIA: Final = ("input_image", "input_file", "input_audio")


class _Item(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(strict=True)


class TextPart(_Item):
    """A piece of text, whoever wrote it."""

    type: Literal["input_text", "output_text", "text", "reasoning_text", "summary_text"]
    text: str


class RefusalPart(_Item):
    """What an assistant said instead of an answer."""

    type: Literal["refusal"]
    refusal: str


class MessageItem(_Item):
    """A message of somebody."""

    role: Literal["system", "developer", "user", "assistant"]
    content: str | list[TextPart | RefusalPart]


class FunctionCallItem(_Item):
    """A call that the model made."""

    call_id: Annotated[str, Field(min_length=1)]
    name: Annotated[str, Field(min_length=1)]
    arguments: str


class CustomCallItem(_Item):
    """A call of a tool that takes a text."""

    call_id: Annotated[str, Field(min_length=1)]
    name: Annotated[str, Field(min_length=1)]
    input: str


class FunctionOutputItem(_Item):
    """What a called function gave."""

    call_id: Annotated[str, Field(min_length=1)]
    output: str | list[TextPart]


class ReasoningItem(_Item):
    """What the model thought."""

    summary: list[TextPart] | None = None
    content: list[TextPart] | None = None


def read_input(
    instructions: str | None, given: str | Sequence[dict[str, Any]]
) -> list[dict[str, Any]]:
    """Messages in the form of chat completions; errors name the item's field."""
    messages: list[dict[str, Any]] = []
    if instructions:
        messages.append({"role": "system", "content": instructions})
    if isinstance(given, str):
        return [*messages, {"role": "user", "content": given}]
    for index, item in enumerate(given):
        _read_item(item, f"input[{index}]", messages)
    return messages


def _read_item(item: dict[str, Any], where: str, messages: list[dict[str, Any]]) -> None:
    # Messages may go without a type.
    kind = item.get("type", "message")
    reader = _READERS.get(kind) if isinstance(kind, str) else None
    if reader is None:
        raise UnsupportedError(
            f"{where}.type is {shown(kind)}, but only {', '.join(_READERS)} can be read",
            param=f"{where}.type",
        )
    _refuse_media(item, where)
    try:
        reader(item, messages)
    except InvalidRequestError as error:
        # Faults are found inside of the item.
        param = f"{where}.{error.param}" if error.param else where
        raise InvalidRequestError(f"{where}.{error.message}", param=param) from error


def _read_message(item: dict[str, Any], messages: list[dict[str, Any]]) -> None:
    fields = check_fields(MessageItem, item)
    text = _text(fields.content)
    if fields.role != "assistant":
        messages.append({"role": fields.role, "content": text})
        return
    turn = _turn(messages)
    if turn["content"] is not None or turn.get("tool_calls"):
        # It has spoken already: this is another message.
        turn = {"role": "assistant", "content": None}
        messages.append(turn)
    turn["content"] = text


def _read_call(item: dict[str, Any], messages: list[dict[str, Any]]) -> None:
    fields = check_fields(FunctionCallItem, item)
    _add_call(messages, fields.call_id, fields.name, fields.arguments)


def _read_custom_call(item: dict[str, Any], messages: list[dict[str, Any]]) -> None:
    fields = check_fields(CustomCallItem, item)
    _add_call(messages, fields.call_id, fields.name, custom_arguments(fields.input))


def _add_call(messages: list[dict[str, Any]], call_id: str, name: str, arguments: str) -> None:
    function = {"name": name, "arguments": arguments}
    call = {"id": call_id, "type": "function", "function": function}
    _turn(messages).setdefault("tool_calls", []).append(call)


def _read_output(item: dict[str, Any], messages: list[dict[str, Any]]) -> None:
    fields = check_fields(FunctionOutputItem, item)
    text = _text(fields.output)
    messages.append({"role": "tool", "tool_call_id": fields.call_id, "content": text})


def _read_reasoning(item: dict[str, Any], messages: list[dict[str, Any]]) -> None:
    fields = check_fields(ReasoningItem, item)
    text = _text(fields.content or fields.summary or [])
    if text:
        messages.append({"role": "assistant", "content": None, "reasoning_content": text})


_READERS: Final[dict[str, Callable[[dict[str, Any], list[dict[str, Any]]], None]]] = {
    "message": _read_message,
    "function_call": _read_call,
    "function_call_output": _read_output,
    "custom_tool_call": _read_custom_call,
    "custom_tool_call_output": _read_output,
    "reasoning": _read_reasoning,
}


def _turn(messages: list[dict[str, Any]]) -> dict[str, Any]:
    """The assistant's message that items now add to: thoughts, text and calls of one turn belong together."""
    if not messages or messages[-1]["role"] != "assistant":
        messages.append({"role": "assistant", "content": None})
    return messages[-1]


def _text(content: str | Sequence[TextPart | RefusalPart]) -> str:
    """All text; pieces are joined by line breaks, as in chat completions."""
    if isinstance(content, str):
        return content
    return "\n".join(part.text if isinstance(part, TextPart) else part.refusal for part in content)


def _refuse_media(item: dict[str, Any], where: str) -> None:
    for name in ("content", "output"):
        parts = item.get(name)
        for index, part in enumerate(parts if isinstance(parts, list) else ()):
            kind = part.get("type") if isinstance(part, dict) else None
            if kind in _MEDIA:
                param = f"{where}.{name}[{index}].type"
                raise UnsupportedError(
                    f"{param} is {shown(kind)}, but the model only reads text", param=param
                )
