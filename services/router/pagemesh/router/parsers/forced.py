"""Grammars that make a model call tools, in the format that it was trained to write."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from pagemesh.errors import InvalidRequestError
from pagemesh.router.parsers.formats import find_tool_format
from pagemesh.router.parsers.grammar_text import GrammarText, joined, thoughts_before
from pagemesh.router.parsers.tool_format import TokenId, WrittenCalls
from pagemesh.sampling.structured.outputs import JSON_WHITESPACE

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


def forced_grammar(
    tool_parser: str,
    reasoning_parser: str | None,
    tools: Sequence[Tool],
    *,
    parallel: bool,
    token_id: TokenId,
    prompt: str = "",
    thinks: bool | None = None,
) -> str:
    """A grammar, for `StructuredOutputs.of(grammar=…)`, of answers that are calls of these tools.

    One call, or with `parallel` any number, behind reasoning when there is a parser for it. Parsers go by
    their names as in `make_parser`, which reads what the grammar allows. `prompt` is the rendered prompt,
    or its end, which may have begun the reasoning; `thinks` is what the request says of it. Raises InvalidRequestError for parameters that are no
    object, and for names that the format cannot hold.
    """
    tool_format = find_tool_format(tool_parser)
    way = tool_format.written_with(token_id)
    text = GrammarText(tool_format.markers, token_id)
    thoughts = thoughts_before(
        reasoning_parser, prompt, token_id, thinks=thinks, call_marker=tool_format.begins_with
    )
    more = f"({joined(text.of(way.separator), 'call')})*" if parallel else ""
    functions = " | ".join(f"f{index}" for index in range(len(tools)))
    return "\n".join(
        [
            joined(
                "start:", thoughts.symbol, text.of(way.before), "call", more, text.of(way.after)
            ),
            *thoughts.rules,
            joined("call:", text.of(way.opening), f"({functions})", text.of(way.closing)),
            *(_function_rule(text, way, f"f{index}", tool) for index, tool in enumerate(tools)),
        ]
    )


def _function_rule(text: GrammarText, way: WrittenCalls, rule: str, tool: Tool) -> str:
    name = tool.name
    if way.is_name_json:
        name = json.dumps(name, ensure_ascii=False)[1:-1]
    elif _NOT_IN_NAMES.search(name):
        raise InvalidRequestError(
            f"the model cannot call a tool with the name {json.dumps(name)}: it writes names without"
            " quotes",
            param=tool.param.removesuffix(".parameters"),
        )
    schema = json.dumps(_arguments_schema(tool), ensure_ascii=False)
    return joined(f"{rule}:", text.of(name + way.middle), "%json", schema)


def _arguments_schema(tool: Tool) -> dict[str, Any]:
    """The parameters' schema as the grammar library has to take it."""
    schema = dict(_NO_PARAMETERS if tool.parameters is None else tool.parameters)
    kind = schema.get("type", "object")
    if kind != "object" and not (isinstance(kind, list) and "object" in kind):
        raise InvalidRequestError(
            f'{tool.param}.type is {json.dumps(kind)}, but it must be "object"', param=tool.param
        )
    schema["type"] = "object"
    schema["x-guidance"] = {
        "lenient": not tool.is_strict,
        "whitespace_flexible": True,
        "whitespace_pattern": JSON_WHITESPACE,
    }
    return schema
