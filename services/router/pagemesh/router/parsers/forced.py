"""Grammars that make a model call tools, in the format that it was trained to write."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from pagemesh.errors import InvalidRequestError
from pagemesh.router.parsers.formats import find_thinking_format, find_tool_format
from pagemesh.router.parsers.thinking import CLOSE as THINK_CLOSE
from pagemesh.router.parsers.thinking import OPEN as THINK_OPEN
from pagemesh.router.parsers.tool_format import TokenId, WrittenCalls
from pagemesh.sampling.structured.outputs import JSON_WHITESPACE

_NO_PARAMETERS: Final = {"type": "object", "properties": {}, "additionalProperties": False}
_ANYTHING: Final = r"/(.|\n)*/"
_BLANKS: Final = r"/[ \n]{1,4}/?"
"""What models write between their thoughts and a call."""


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
) -> str:
    """A grammar, for `StructuredOutputs.of(grammar=…)`, of answers that are calls of these tools.

    One call, or with `parallel` any number, behind reasoning when there is a parser for it. Parsers go by
    their names as in `make_parser`, which reads what the grammar allows. `prompt` is the rendered prompt,
    or its end, which may have begun the reasoning. Raises InvalidRequestError for parameters that are no
    object.
    """
    tool_format = find_tool_format(tool_parser)
    way = tool_format.written_with(token_id)
    text = _TextWriter(tool_format.markers | {THINK_OPEN, THINK_CLOSE}, token_id)
    thoughts, rules = "", list[str]()
    if reasoning_parser is not None:
        thinking = find_thinking_format(reasoning_parser)
        begins = thinking.begins_thinking(prompt)
        if begins is not False:
            thoughts = "thoughts" if begins else "thoughts?"
            never = tool_format.begins_with if thinking.has_calls else None
            rules = _thought_rules(text, has_begun=begins is True, never=never)
    more = f"({_joined(text.of(way.separator), 'call')})*" if parallel else ""
    functions = " | ".join(f"f{index}" for index in range(len(tools)))
    rules += [
        _joined("call:", text.of(way.opening), f"({functions})", text.of(way.closing)),
        *(_function_rule(text, way, f"f{index}", tool) for index, tool in enumerate(tools)),
    ]
    start = _joined("start:", thoughts, text.of(way.before), "call", more, text.of(way.after))
    return "\n".join([start, *rules])


class _TextWriter:
    """Writes text as a grammar has it, in which a token with a text of its own is only that token."""

    def __init__(self, markers: Iterable[str], token_id: TokenId) -> None:
        ids = {marker: token_id(marker) for marker in markers}
        self._tokens = {marker: f"<[{id_}]>" for marker, id_ in ids.items() if id_ is not None}
        self._split = re.compile("(" + "|".join(re.escape(marker) for marker in self._tokens) + ")")

    def of(self, text: str) -> str:
        """The text, "" when it has none."""
        parts = self._split.split(text) if self._tokens else [text]
        return _joined(*(self._tokens.get(part) or self._literal(part) for part in parts if part))

    def has_token(self, marker: str) -> bool:
        """Whether a marker is a token of its own."""
        return marker in self._tokens

    @staticmethod
    def _literal(text: str) -> str:
        return json.dumps(text, ensure_ascii=False)


def _thought_rules(text: _TextWriter, *, has_begun: bool, never: str | None) -> list[str]:
    """Rules for `thoughts`, up to the end of the blanks behind them.

    `never` is what parsers take for the end of thoughts as well, and may not stand in them.
    """
    opening = text.of(THINK_OPEN)
    if text.has_token(THINK_CLOSE):
        # Any text has no tokens with a text of their own in it.
        opening = f"({opening})?" if has_begun else opening
        return [_joined("thoughts:", opening, _ANYTHING, text.of(THINK_CLOSE), _BLANKS)]
    anything = _ANYTHING
    if never is not None:
        anything += f" & ~({_ANYTHING} {json.dumps(never)} {_ANYTHING})"
    return [
        # What has begun may be told once more, as any text.
        _joined("thoughts:", "" if has_begun else opening, "thought", _BLANKS),
        f"thought[suffix={text.of(THINK_CLOSE)}]: ANYTHING",
        f"ANYTHING: {anything}",
    ]


def _function_rule(text: _TextWriter, way: WrittenCalls, rule: str, tool: Tool) -> str:
    name = json.dumps(tool.name, ensure_ascii=False)[1:-1] if way.is_name_json else tool.name
    schema = json.dumps(_arguments_schema(tool), ensure_ascii=False)
    return _joined(f"{rule}:", text.of(name + way.middle), "%json", schema)


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


def _joined(*parts: str) -> str:
    return " ".join(part for part in parts if part)
