"""The tools of POST /v1/messages as those of a chat request."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Literal

import pydantic
from pydantic import Field

from pagemesh.errors import InvalidRequestError, UnsupportedError
from pagemesh.router.openai.fields import shown
from pagemesh.router.openai.lax_types import Truth


class Tool(pydantic.BaseModel):
    """A tool that the client runs."""

    model_config = pydantic.ConfigDict(strict=True)

    type: Literal["custom"] | None = None
    name: Annotated[str, Field(min_length=1)]
    description: str | None = None
    input_schema: dict[str, Any]
    strict: Truth | None = None

    def for_chat(self) -> dict[str, Any]:
        """The tool in the form of chat completions."""
        function: dict[str, Any] = {"name": self.name, "parameters": self.input_schema}
        if self.description is not None:
            function["description"] = self.description
        if self.strict is not None:
            function["strict"] = self.strict
        return {"type": "function", "function": function}


class ToolChoice(pydantic.BaseModel):
    """How the model is to choose among tools."""

    model_config = pydantic.ConfigDict(strict=True)

    type: Literal["auto", "any", "tool", "none"]
    name: str | None = None
    disable_parallel_tool_use: Truth | None = None

    def for_chat(self) -> str | dict[str, Any]:
        """The choice in the form of chat completions; InvalidRequestError when it lacks the tool's name."""
        if self.type != "tool":
            return "required" if self.type == "any" else self.type
        if not self.name:
            raise InvalidRequestError("tool_choice.name is missing", param="tool_choice.name")
        return {"type": "function", "function": {"name": self.name}}


def refuse_server_tools(tools: Any) -> None:
    """Name the first tool that Anthropic would run itself."""
    for index, tool in enumerate(tools if isinstance(tools, list) else ()):
        kind = tool.get("type") if isinstance(tool, dict) else None
        if isinstance(kind, str) and kind != "custom":
            param = f"tools[{index}].type"
            raise UnsupportedError(
                f"{param} is {shown(kind)}, but this mesh runs no tools of its own: only custom ones"
                " are supported",
                param=param,
            )


def tools_for_chat(tools: Sequence[Tool] | None, choice: ToolChoice | None) -> dict[str, Any]:
    """The fields of a chat request that say the same."""
    found: dict[str, Any] = {}
    if tools:
        found["tools"] = [tool.for_chat() for tool in tools]
    if choice is not None and (tools or choice.type not in ("auto", "none")):
        found["tool_choice"] = choice.for_chat()
        if choice.disable_parallel_tool_use:
            found["parallel_tool_calls"] = False
    return found
