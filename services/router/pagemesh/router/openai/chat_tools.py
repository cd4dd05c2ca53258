"""The tools that a conversation offers to the model, and how it is to choose among them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Final, Literal

import pydantic
from pydantic import Field

from pagemesh.errors import InvalidRequestError, UnsupportedError
from pagemesh.router.openai.fields import shown
from pagemesh.router.openai.lax_types import Truth
from pagemesh.router.parsers.forced import Tool

MAX_TOOLS: Final = 1024
"""Most tools of one request."""


class FunctionDefinition(pydantic.BaseModel):
    """The `function` object of a tool."""

    model_config = pydantic.ConfigDict(strict=True)

    name: Annotated[str, Field(min_length=1)]
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: Truth | None = None


class FunctionTool(pydantic.BaseModel):
    """A function that the model may call."""

    model_config = pydantic.ConfigDict(strict=True)

    type: Literal["function"]
    function: FunctionDefinition

    def for_template(self) -> dict[str, Any]:
        """The tool as chat templates show it to the model, without what was not given."""
        return self.model_dump(exclude_none=True)

    def for_grammar(self, index: int) -> Tool:
        """The tool, which is the request's one of this index, as a grammar of calls has it."""
        function = self.function
        return Tool(
            function.name,
            function.parameters,
            bool(function.strict),
            f"tools[{index}].function.parameters",
        )


class ToolReference(pydantic.BaseModel):
    """The name of a function in a choice."""

    model_config = pydantic.ConfigDict(strict=True)

    name: Annotated[str, Field(min_length=1)]


class NamedTool(pydantic.BaseModel):
    """The function that the model has to call."""

    model_config = pydantic.ConfigDict(strict=True)

    type: Literal["function"] = "function"
    function: ToolReference


class AllowedTools(pydantic.BaseModel):
    """The `allowed_tools` object of a choice."""

    model_config = pydantic.ConfigDict(strict=True)

    mode: Literal["auto", "required"]
    tools: Annotated[list[NamedTool], Field(min_length=1, max_length=MAX_TOOLS)]


class AllowedToolChoice(pydantic.BaseModel):
    """A choice among some of the tools."""

    model_config = pydantic.ConfigDict(strict=True)

    type: Literal["allowed_tools"]
    allowed_tools: AllowedTools


ToolChoice = Literal["none", "auto", "required"] | NamedTool | AllowedToolChoice


@dataclass(frozen=True, slots=True)
class ToolUse:
    """What a request says about tools, in one form."""

    shown: Sequence[FunctionTool] = ()
    """Those that the model is told of."""

    mode: Literal["none", "auto", "required"] = "none"

    callable: Sequence[Tool] = ()
    """Those that it may choose from."""

    is_named: bool = False
    """Whether it has no choice at all."""

    @property
    def is_constrained(self) -> bool:
        """Whether calls must come, or must fit a strict tool when the model chooses to call it."""
        return self.mode == "required" or (
            self.mode == "auto" and any(tool.is_strict for tool in self.callable)
        )


def read_tool_use(
    tools: Sequence[FunctionTool] | None, choice: ToolChoice | None, param: str = "tool_choice"
) -> ToolUse:
    """Tools and choice in one form; InvalidRequestError when they do not go together."""
    if not tools:
        if tools is not None:
            raise InvalidRequestError(
                "tools is an empty list: there must be one at least, or no such field",
                param="tools",
            )
        if choice not in (None, "none"):
            raise InvalidRequestError("tool_choice needs tools, but there are none", param=param)
        return ToolUse()
    if isinstance(choice, NamedTool):
        named = _named(tools, [choice], f"{param}.function.name")
        return ToolUse(tools, "required", named, is_named=True)
    if isinstance(choice, AllowedToolChoice):
        allowed = choice.allowed_tools
        named = _named(tools, allowed.tools, f"{param}.allowed_tools.tools")
        names = {tool.name for tool in named}
        # The model is only told of those that it may call: nothing else could keep it from the others.
        return ToolUse([tool for tool in tools if tool.function.name in names], allowed.mode, named)
    known = [tool.for_grammar(index) for index, tool in enumerate(tools)]
    return ToolUse(tools, choice or "auto", known)


def _named(tools: Sequence[FunctionTool], wanted: Sequence[NamedTool], param: str) -> list[Tool]:
    by_name = {tool.function.name: tool.for_grammar(index) for index, tool in enumerate(tools)}
    found = []
    for one in wanted:
        tool = by_name.get(one.function.name)
        if tool is None:
            raise InvalidRequestError(
                f"{param} has {shown(one.function.name)}, which is none of the tools", param=param
            )
        found.append(tool)
    return found


def refuse_other_tools(raw: dict[str, Any]) -> None:
    """Name tools and choices that OpenAI knows besides functions."""
    tools = raw.get("tools")
    for index, tool in enumerate(tools if isinstance(tools, list) else ()):
        if isinstance(tool, dict) and tool.get("type") == "custom":
            raise UnsupportedError(
                f'tools[{index}].type is "custom", but only functions are supported',
                param=f"tools[{index}].type",
            )
    choice = raw.get("tool_choice")
    if isinstance(choice, dict) and choice.get("type") == "custom":
        raise UnsupportedError(
            'tool_choice.type is "custom", but only functions are supported',
            param="tool_choice.type",
        )
