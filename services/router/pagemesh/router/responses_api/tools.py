"""The tools of POST /v1/responses as those of a chat request."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Literal

import pydantic
from pydantic import Field

from pagemesh.errors import InvalidRequestError, UnsupportedError
from pagemesh.router.openai.fields import check_fields, shown

_MODES = ("none", "auto", "required")


class FunctionTool(pydantic.BaseModel):
    """A function that the model may call."""

    model_config = pydantic.ConfigDict(strict=True)

    type: Literal["function"]
    name: Annotated[str, Field(min_length=1)]
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None

    def for_chat(self) -> dict[str, Any]:
        """The tool in the form of chat completions."""
        function = self.model_dump(exclude={"type"}, exclude_none=True)
        return {"type": "function", "function": function}


class AllowedTools(pydantic.BaseModel):
    """A choice among some of the functions."""

    model_config = pydantic.ConfigDict(strict=True)

    mode: Literal["auto", "required"]
    tools: Annotated[list[dict[str, Any]], Field(min_length=1)]


def read_tools(given: Sequence[dict[str, Any]]) -> list[FunctionTool]:
    """The functions; UnsupportedError naming a tool of any other kind."""
    tools = []
    for index, tool in enumerate(given):
        where = f"tools[{index}]"
        kind = tool.get("type")
        if isinstance(kind, str) and kind != "function":
            raise UnsupportedError(
                f"{where}.type is {shown(kind)}, but this mesh runs no tools of its own: only functions"
                " are supported",
                param=f"{where}.type",
            )
        try:
            tools.append(check_fields(FunctionTool, tool))
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
    if isinstance(given, dict) and kind == "function":
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
        f"tool_choice is {shown(given)}, but must be one of {', '.join(_MODES)}, a function or"
        " allowed_tools",
        param="tool_choice",
    )


def _named(tool: dict[str, Any]) -> dict[str, Any]:
    return {"type": "function", "function": {"name": tool.get("name")}}
