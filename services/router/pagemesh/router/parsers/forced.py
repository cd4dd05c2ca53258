"""Grammars that make a model call tools, in the format that it was trained to write."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Self

from pagemesh.errors import InvalidRequestError
from pagemesh.router.parsers.answer_start import AnswerStart
from pagemesh.router.parsers.formats import find_tool_format
from pagemesh.router.parsers.grammar_text import GrammarText, joined
from pagemesh.router.parsers.tool_format import TokenId, ToolFormat, WrittenCalls
from pagemesh.sampling.structured.outputs import JSON_WHITESPACE
from pagemesh.sampling.structured.schemas import GUIDANCE, leniently

_NOT_IN_NAMES: Final = re.compile(r"""[\s\[\]{}<>"'`,;()]""")
_NO_PARAMETERS: Final = {"type": "object", "properties": {}, "additionalProperties": False}


@dataclass(frozen=True, slots=True)
class Tool:
    """A function that the model may call."""

    name: str

    parameters: Mapping[str, Any] | None
    """JSON schema of its arguments; None when it takes none."""

    is_strict: bool = False
    """Whether a schema is refused that has keywords which cannot be followed; otherwise they are ignored."""

    param: str = "tools"
    """The request's field with the parameters, as errors name it."""


@dataclass(frozen=True, slots=True)
class CallSyntax:
    """What the model writes when it calls tools."""

    format: ToolFormat
    way: WrittenCalls
    text: GrammarText

    @classmethod
    def of(cls, tool_parser: str, token_id: TokenId) -> Self:
        """By the name of the parser, as in `make_parser`, which reads what the grammar allows."""
        format_ = find_tool_format(tool_parser)
        return cls(format_, format_.written_with(token_id), GrammarText(format_.markers, token_id))

    @property
    def is_bare(self) -> bool:
        """Whether calls are JSON without a mark to begin with."""
        return self.format.begins_with is None

    def more_calls(self) -> str:
        """Behind the first call, any number."""
        return f"({joined(self.text.of(self.way.separator), 'call')})*"

    def rules(self, opening: str, tools: Sequence[Tool], *, lead: str = "") -> Iterator[str]:
        """The rule `call`, which begins with `opening`, and those that it needs.

        `lead` comes in one text with each name. Raises InvalidRequestError for parameters that are no object,
        and for names that the format cannot hold.
        """
        functions = " | ".join(f"f{index}" for index in range(len(tools)))
        closing = self.text.of(self.way.closing)
        yield joined("call:", self.text.of(opening), f"({functions})", closing)
        for index, tool in enumerate(tools):
            name = self.text.of(lead + self.written_name(tool) + self.way.middle)
            schema = json.dumps(arguments_schema(tool), ensure_ascii=False)
            yield joined(f"f{index}:", name, "%json", schema)

    def written_name(self, tool: Tool) -> str:
        """A tool's name as calls have it; InvalidRequestError for one that they cannot have."""
        if self.way.is_name_json:
            return json.dumps(tool.name, ensure_ascii=False)[1:-1]
        if _NOT_IN_NAMES.search(tool.name):
            raise InvalidRequestError(
                f"the model cannot call a tool with the name {json.dumps(tool.name)}: it writes names"
                " without quotes",
                param=tool.param.removesuffix(".parameters"),
            )
        return tool.name


def forced_grammar(
    tool_parser: str, start: AnswerStart, tools: Sequence[Tool], *, parallel: bool
) -> str:
    """A grammar, for `StructuredOutputs.of(grammar=…)`, of answers that are calls of these tools.

    One call, or with `parallel` any number, behind reasoning when there is a parser for it. Raises
    InvalidRequestError for parameters that are no object, and for names that the format cannot hold.
    """
    syntax = CallSyntax.of(tool_parser, start.token_id)
    thoughts = start.thoughts(syntax.format.begins_with)
    before, after = syntax.text.of(syntax.way.before), syntax.text.of(syntax.way.after)
    more = syntax.more_calls() if parallel else ""
    return "\n".join(
        [
            joined("start:", thoughts.symbol, before, "call", more, after),
            *thoughts.rules,
            *syntax.rules(syntax.way.opening, tools),
        ]
    )


def arguments_schema(tool: Tool) -> dict[str, Any]:
    """The parameters' schema as the grammar library has to take it."""
    schema = dict(_NO_PARAMETERS if tool.parameters is None else tool.parameters)
    kind = schema.get("type", "object")
    if kind != "object" and not (isinstance(kind, list) and "object" in kind):
        raise InvalidRequestError(
            f'{tool.param}.type is {json.dumps(kind)}, but it must be "object"', param=tool.param
        )
    schema["type"] = "object"
    whitespace = {"whitespace_flexible": True, "whitespace_pattern": JSON_WHITESPACE}
    schema[GUIDANCE] = {"lenient": False, **whitespace}
    return schema if tool.is_strict else leniently(schema)
