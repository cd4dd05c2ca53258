"""The tools of POST /v1/responses as those of a chat request."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Annotated, Any, Final, Literal

import pydantic
from pydantic import Field

from pagemesh.errors import InvalidRequestError, UnsupportedError
from pagemesh.router.openai.fields import check_fields, shown
from pagemesh.router.openai.lax_types import Truth

_MODES = ("none", "auto", "required")


class FunctionTool(pydantic.BaseModel):
    """A function that the model may call."""

    model_config = pydantic.ConfigDict(strict=True)

    type: Literal["function"]
    name: Annotated[str, Field(min_length=1)]
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: Truth | None = None

    def for_chat(self) -> dict[str, Any]:
        """The tool in the form of chat completions."""
        function = self.model_dump(exclude={"type"}, exclude_none=True)
        return {"type": "function", "function": function}


class CustomFormat(pydantic.BaseModel):
    """What the text for a custom tool looks like."""

    model_config = pydantic.ConfigDict(strict=True)

    type: Literal["text", "grammar"]
    syntax: Literal["lark", "regex"] | None = None
    definition: str | None = None


class CustomTool(pydantic.BaseModel):
    """A tool of the client that takes a text as it is; a function with one argument stands for it."""

    model_config = pydantic.ConfigDict(strict=True)

    type: Literal["custom"]
    name: Annotated[str, Field(min_length=1)]
    description: str | None = None
    format: CustomFormat | None = None

    def for_chat(self) -> dict[str, Any]:
        """The function. A grammar is told to the model, which is not held to it inside of a JSON string."""
        told = [self.description] if self.description else []
        if self.format is not None and self.format.definition:
            syntax = self.format.syntax or "grammar"
            told.append(f"The input follows this {syntax} definition:\n{self.format.definition}")
        parameters = {
            "type": "object",
            "properties": {_INPUT: {"type": "string"}},
            "required": [_INPUT],
            "additionalProperties": False,
        }
        function: dict[str, Any] = {"name": self.name, "parameters": parameters}
        if told:
            function["description"] = "\n\n".join(told)
        return {"type": "function", "function": function}


Tool = FunctionTool | CustomTool

_INPUT: Final = "input"
_KINDS: Final[dict[str, type[Tool]]] = {"function": FunctionTool, "custom": CustomTool}


def custom_arguments(text: str) -> str:
    """The arguments of the function that stands for a custom tool."""
    return json.dumps({_INPUT: text}, ensure_ascii=False)


def custom_input(arguments: str) -> str:
    """The text in such arguments, of which the end may be missing; the arguments where there is none."""
    for end in ("", "}", '"}'):
        try:
            found = json.loads(arguments + end)
        except ValueError:
            continue
        if isinstance(found, dict) and isinstance(found.get(_INPUT), str):
            return str(found[_INPUT])
    return arguments


class AllowedTools(pydantic.BaseModel):
    """A choice among some of the functions."""

    model_config = pydantic.ConfigDict(strict=True)

    mode: Literal["auto", "required"]
    tools: Annotated[list[dict[str, Any]], Field(min_length=1)]


def read_tools(given: Sequence[dict[str, Any]]) -> list[Tool]:
    """Functions and custom tools; UnsupportedError naming a tool of any other kind."""
    tools: list[Tool] = []
    for index, tool in enumerate(given):
        where = f"tools[{index}]"
        kind = tool.get("type")
        if isinstance(kind, str) and kind not in _KINDS:
            raise UnsupportedError(
                f"{where}.type is {shown(kind)}, but this mesh runs no tools of its own: only functions"
                " and custom tools are supported",
                param=f"{where}.type",
            )
        try:
            tools.append(check_fields(_KINDS.get(str(kind), FunctionTool), tool))
        except InvalidRequestError as error:
            raise InvalidRequestError(
                f"{where}.{error.message}", param=f"{where}.{error.param}"
            ) from error
    return tools


def read_tool_choice(given: str | dict[str, Any] | None) -> str | dict[str, Any] | None:
    """The choice in the form of chat completions; UnsupportedError for tools other than functions."""
    if given is None or (isinstance(given, str) and given in _MODES):
        return given
    kind = given.get("type") if isinstance(given, dict) else None
    if isinstance(given, dict) and kind in _KINDS:
        return _named(given)
    if isinstance(given, dict) and kind == "allowed_tools":
        try:
            fields = check_fields(AllowedTools, given)
        except InvalidRequestError as error:
            raise InvalidRequestError(
                f"tool_choice.{error.message}", param=f"tool_choice.{error.param}"
            ) from error
        allowed = {"mode": fields.mode, "tools": [_named(tool) for tool in fields.tools]}
        return {"type": "allowed_tools", "allowed_tools": allowed}
    raise UnsupportedError(
        f"tool_choice is {shown(given)}, but must be one of {', '.join(_MODES)}, a function, a"
        " custom tool or allowed_tools",
        param="tool_choice",
    )


def _named(tool: dict[str, Any]) -> dict[str, Any]:
    return {"type": "function", "function": {"name": tool.get("name")}}
