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


def read_tool_choice(
    given: str | dict[str, Any] | None, tools: Sequence[FunctionTool]
) -> tuple[str | dict[str, Any] | None, Sequence[FunctionTool]]:
    """The choice in the form of chat completions, and the tools among which it is."""
    if given is None or (isinstance(given, str) and given in _MODES):
        return given, tools
    kind = given.get("type") if isinstance(given, dict) else None
    if isinstance(given, dict) and kind == "function":
        return {"type": "function", "function": {"name": given.get("name")}}, tools
    if isinstance(given, dict) and kind == "allowed_tools":
        return _read_allowed(given, tools)
    raise UnsupportedError(
        f"tool_choice is {shown(given)}, but must be one of {', '.join(_MODES)}, a function or"
        " allowed_tools",
        param="tool_choice",
    )


def _read_allowed(
    given: dict[str, Any], tools: Sequence[FunctionTool]
) -> tuple[str, Sequence[FunctionTool]]:
    mode, allowed = given.get("mode"), given.get("tools")
    if mode not in ("auto", "required") or not isinstance(allowed, list) or not allowed:
        raise InvalidRequestError(
            f"tool_choice is {shown(given)}: allowed_tools must have tools, and a mode of auto or"
            " required",
            param="tool_choice",
        )
    by_name = {tool.name: tool for tool in tools}
    kept = []
    for index, one in enumerate(allowed):
        name = one.get("name") if isinstance(one, dict) else None
        if not isinstance(name, str) or name not in by_name:
            param = f"tool_choice.tools[{index}]"
            raise InvalidRequestError(
                f"{param} is {shown(one)}, which is not in tools", param=param
            )
        kept.append(by_name[name])
    return mode, kept
