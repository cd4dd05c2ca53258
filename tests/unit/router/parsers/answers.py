"""Answers as models write them, what is in them, and a parser's pieces put together."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from dataclasses import dataclass

from pagemesh.router.parsers.factory import make_parser
from pagemesh.router.parsers.interface import AnswerParser, ParsedPiece
from pagemesh.router.parsers.thinking import thoughts_begun

Calls = tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class Parsed:
    content: str = ""
    reasoning: str = ""
    calls: Calls = ()
    """Names and arguments."""

    ids: tuple[str, ...] = ()


@dataclass(frozen=True)
class Answer:
    name: str
    parser: str
    text: str
    content: str
    calls: Calls


def new_parser(
    tool_parser: str | None, reasoning_parser: str | None = None, prompt: str = ""
) -> AnswerParser:
    numbers = itertools.count(1)
    return make_parser(
        tool_parser,
        reasoning_parser,
        begun=thoughts_begun(prompt),
        new_hex=lambda: f"{next(numbers)}" * 32,
    )


def joined(pieces: Iterable[ParsedPiece]) -> Parsed:
    """All pieces as one; fails when a call's deltas are not in order."""
    content = reasoning = ""
    ids: list[str] = []
    names: list[str] = []
    arguments: list[str] = []
    for piece in pieces:
        content += piece.content
        reasoning += piece.reasoning
        assert len({delta.index for delta in piece.tool_calls}) == len(piece.tool_calls)
        for delta in piece.tool_calls:
            if delta.call_id is not None:
                assert delta.name
                ids.append(delta.call_id)
                names.append(delta.name)
                arguments.append("")
            else:
                assert delta.name is None
                assert delta.arguments
            assert delta.index == len(ids) - 1
            arguments[-1] += delta.arguments
    return Parsed(content, reasoning, tuple(zip(names, arguments, strict=True)), tuple(ids))


def parsed(parser: AnswerParser, pieces: Iterable[str]) -> Parsed:
    return joined([*[parser.push(piece) for piece in pieces], parser.finish()])


def hermes(name: str, text: str, content: str = "", *calls: tuple[str, str]) -> Answer:
    return Answer(f"hermes: {name}", "hermes", text, content, calls)


def llama(name: str, text: str, content: str = "", *calls: tuple[str, str]) -> Answer:
    return Answer(f"llama: {name}", "llama3_json", text, content, calls)


def mistral(name: str, text: str, content: str = "", *calls: tuple[str, str]) -> Answer:
    return Answer(f"mistral: {name}", "mistral", text, content, calls)


def deepseek(name: str, text: str, content: str = "", *calls: tuple[str, str]) -> Answer:
    return Answer(f"deepseek: {name}", "deepseek_v3", text, content, calls)


HARD = '{"code": "if (a[\\"}\\"]) { b = \'</tool_call>[TOOL_CALLS]\'; }\\\\", "n": [{"x": {}}, "ü😀\\n"]}'
"""Arguments with brackets, quotes and markers in strings."""

PLAIN = (
    "The sky is blue.",
    "  \n\n",
    "a < b, c[d] and {e}",
    "\nSome code:\n```python\nd = {'name': [1]}\n```\n",
    '{"name": "Ada", "age": 36, "skills": ["{", "}"]}',
    '{"name": "Ada", "arguments": ["for", "against"]}',
    '[{"name": "Ada"}]',
    "<b>bold</b> <tool_calls> [TOOL] <｜end｜>",
)
"""Answers that no format takes for calls."""

_CALLS = "<｜tool▁calls▁begin｜>"
_ENDS = "<｜tool▁calls▁end｜>"


def _v3(name: str, arguments: str) -> str:
    return (
        f"<｜tool▁call▁begin｜>function<｜tool▁sep｜>{name}\n```json\n{arguments}\n```"
        "<｜tool▁call▁end｜>"
    )


def _v31(name: str, arguments: str) -> str:
    return f"<｜tool▁call▁begin｜>{name}<｜tool▁sep｜>{arguments}<｜tool▁call▁end｜>"


WEATHER = ("get_weather", '{"city": "Oslo", "days": 3}')
TIME = ("get_time", "{}")

ANSWERS = (
    hermes(
        "one",
        '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Oslo", "days": 3}}\n</tool_call>',
        "",
        WEATHER,
    ),
    hermes(
        "two behind text",
        'Let me look.\n\n<tool_call>\n{"name": "get_weather", "arguments": {"city": "Oslo", "days": 3}}\n'
        '</tool_call>\n<tool_call>\n{"name": "get_time", "arguments": {}}\n</tool_call>\n',
        "Let me look.\n\n",
        WEATHER,
        TIME,
    ),
    hermes(
        "text behind and between",
        '\n<tool_call>{"name":"get_time","arguments":{}}\n</tool_call>\n and \n'
        '<tool_call>{"name":"get_time","arguments":{}}</tool_call>\n\nDone.',
        "\n and \n\n\nDone.",
        TIME,
        TIME,
    ),
    hermes(
        "other order, other keys",
        '<tool_call>{"type": "function", "arguments": {"city": "Oslo", "days": 3}, "id": "1", "name":'
        ' "get_weather", "more": [{"a": "}"}], "n": -1.5e3, "t": true}</tool_call>',
        "",
        WEATHER,
    ),
    hermes(
        "hard arguments",
        f'<tool_call>{{"name": "r\\u00fcn\\"", "arguments": {HARD}}}</tool_call>',
        "",
        ('rün"', HARD),
    ),
    hermes(
        "a closing tag too few",
        '<tool_call>{"name": "get_time", "arguments": {}}\n<tool_call>{"name": "get_time",'
        ' "arguments": {}}',
        "",
        TIME,
        TIME,
    ),
    hermes(
        "a brace too many",
        '<tool_call>{"name": "get_time", "arguments": {}}}\n</tool_call>',
        "}\n",
        TIME,
    ),
    hermes(
        "arguments that are never closed",
        '<tool_call>{"name": "f", "arguments": {"a": [1}\n</tool_call>Sorry.',
        "Sorry.",
        ("f", '{"a": [1}\n'),
    ),
    hermes(
        "more text in the object",
        '<tool_call>{"name": "get_time", "arguments": {} or so}</tool_call>!',
        " or so}!",
        TIME,
    ),
    hermes(
        "no arguments, then a call",
        '<tool_call>{"name": "f"}</tool_call><tool_call>{"name": "get_time", "arguments": {}}</tool_call>',
        '<tool_call>{"name": "f"}</tool_call>',
        TIME,
    ),
    hermes(
        "a tag in a tag",
        '<tool_call>\n<tool_<tool_call>{"name": "get_time", "arguments": {}}</tool_call>',
        "<tool_call>\n<tool_",
        TIME,
    ),
    hermes(
        "two in one pair of tags",
        '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Oslo", "days": 3}}\n'
        '{"name": "get_time", "arguments": {}}\n</tool_call> Done.',
        " Done.",
        WEATHER,
        TIME,
    ),
    hermes(
        "a call and other JSON in one pair of tags",
        '<tool_call>{"name": "get_time", "arguments": {}}\n{"name": 1}</tool_call>',
        '\n{"name": 1}',
        TIME,
    ),
    llama(
        "a list",
        '[{"name": "get_weather", "parameters": {"city": "Oslo", "days": 3}},\n '
        '{"name": "get_time", "parameters": {}} ]',
        "",
        WEATHER,
        TIME,
    ),
    llama(
        "a list behind the tag, and one of one",
        '<|python_tag|> [ {"name": "get_time", "parameters": {}}] [{"name": "get_time",'
        ' "parameters": {}}]',
        "",
        TIME,
        TIME,
    ),
    llama(
        "a list that goes wrong",
        '[{"name": "get_time", "parameters": {}}, {"n": [1]}] and [2]',
        ', {"n": [1]}] and [2]',
        TIME,
    ),
    llama("one", '{"name": "get_weather", "parameters": {"city": "Oslo", "days": 3}}', "", WEATHER),
    llama(
        "several behind the tag",
        '<|python_tag|>{"name": "get_weather", "parameters": {"city": "Oslo", "days": 3}}; '
        '{"type": "function", "name": "get_time", "parameters": {}}\n;\n'
        '{"arguments": {}, "name": "get_time"}',
        "",
        WEATHER,
        TIME,
        TIME,
    ),
    llama(
        "text around",
        'I use {a}: {"name": "get_time", "parameters": {}}; that is all.',
        "I use {a}: ; that is all.",
        TIME,
    ),
    llama("hard arguments", f'\n{{"name": "run", "parameters": {HARD}}}', "", ("run", HARD)),
    llama(
        "a separator and no call",
        '{"name": "get_time", "parameters": {}} ; {"name": "get_time"}',
        ' ; {"name": "get_time"}',
        TIME,
    ),
    mistral(
        "a list",
        '[TOOL_CALLS] [{"name": "get_weather", "arguments": {"city": "Oslo", "days": 3}},'
        ' {"arguments": {}, "name": "get_time"} ]',
        "",
        WEATHER,
        TIME,
    ),
    mistral(
        "names",
        'Sure.[TOOL_CALLS]get_weather{"city": "Oslo", "days": 3}[TOOL_CALLS]get_time[ARGS]{}',
        "Sure.",
        WEATHER,
        TIME,
    ),
    mistral(
        "names with ids",
        "[TOOL_CALLS]get_time[CALL_ID]a1B2c3D4e[ARGS]{} [TOOL_CALLS]get_time [ARGS] {} Bye.",
        " Bye.",
        TIME,
        TIME,
    ),
    mistral("hard arguments", f"[TOOL_CALLS]run{HARD}", "", ("run", HARD)),
    mistral(
        "hard arguments in a list",
        f'[TOOL_CALLS][{{"name": "run", "arguments": {HARD}}}]',
        "",
        ("run", HARD),
    ),
    mistral(
        "a list that goes wrong",
        '[TOOL_CALLS][{"name": "get_time", "arguments": {}}, {"name": 1}]',
        ', {"name": 1}]',
        TIME,
    ),
    mistral(
        "a call in the middle of another",
        '[TOOL_CALLS][TOOL_CALLS]f{"a": [1, [2[TOOL_CALLS][{"name": "g", "arguments": {"a":'
        "[TOOL_CALLS]get_time{}",
        "[TOOL_CALLS]",
        ("f", '{"a": [1, [2'),
        ("g", '{"a":'),
        TIME,
    ),
    deepseek(
        "two",
        "Let me look." + _CALLS + _v3(*WEATHER) + "\n" + _v3(*TIME) + _ENDS,
        "Let me look.",
        WEATHER,
        TIME,
    ),
    deepseek("two of V3.1", _CALLS + _v31(*WEATHER) + _v31(*TIME) + _ENDS, "", WEATHER, TIME),
    deepseek("hard arguments", _CALLS + _v3("run", HARD) + _ENDS, "", ("run", HARD)),
    deepseek(
        "text between",
        _v3(*TIME) + " and `then`\n" + _CALLS + _v31(*TIME) + _ENDS + "```",
        " and `then`\n```",
        TIME,
        TIME,
    ),
    deepseek(
        "arguments that are never closed",
        _CALLS + _v31("f", '{"a": [') + _ENDS + "Sorry.",
        "Sorry.",
        ("f", '{"a": ['),
    ),
)

NO_CALLS = (
    ("hermes", '<tool_call>\n{"name": "f"}\n</tool_call>\n'),
    ("hermes", '<tool_call>{"name": "f", "arguments": "{}"}</tool_call>'),
    ("hermes", '<tool_call>{"name": "f", "name": "g", "arguments": {}}</tool_call>'),
    ("hermes", '<tool_call>{"name": "", "arguments": {}}</tool_call>'),
    ("hermes", '<tool_call>{"name": "\\ud800", "arguments": {}}</tool_call>'),
    ("hermes", '<tool_call>{"name": "\\x", "arguments": {}}</tool_call>'),
    ("hermes", '<tool_call>{"arguments": {"a": [}</tool_call>", "name": "f"}'),
    ("hermes", "<tool_call>f()</tool_call> </tool_call>"),
    ("hermes", '</tool_call>{"name": "f", "arguments": {}}'),
    ("hermes", '<tool_call>{"name" "f", "arguments": {}}</tool_call>'),
    ("llama3_json", '<|python_tag|>search.call(query="x")'),
    ("llama3_json", '{"name": "f", "parameters": null}'),
    ("llama3_json", '{"function": {"name": "f", "parameters": {}}, "name": "f"}'),
    ("llama3_json", '{"type": 1, "name": "f", "parameters": {}}'),
    ("llama3_json", '[{"a": 1}, {"name": "f", "parameters": {}}]'),
    ("llama3_json", '[1, [{"a": "]"}], {"b": {}}] [ ] <|python_tag|>[x]'),
    ("mistral", "[TOOL_CALLS] []"),
    ("mistral", "[TOOL_CALLS]\n[TOOL_CALLS] [TOOL_CALLS]f"),
    ("mistral", "[TOOL_CALLS] I cannot do that."),
    ("mistral", "[TOOL_CALLS]{}[ARGS]"),
    ("mistral", "[TOOL_CALLS]f[ARGS][]"),
    ("mistral", "f[ARGS]{} [1, 2]"),
    ("deepseek_v3", _CALLS + _ENDS),
    ("deepseek_v3", _CALLS + "<｜tool▁call▁begin｜>function<｜tool▁sep｜>f\n```yaml\na: 1\n```"),
    ("deepseek_v3", "<｜tool▁call▁begin｜><｜tool▁sep｜>{}<｜tool▁call▁end｜>"),
    *(
        (parser, text)
        for parser in ("hermes", "llama3_json", "mistral", "deepseek_v3")
        for text in PLAIN
    ),
)
"""Texts that are content as they are."""
