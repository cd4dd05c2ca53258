"""What the output of a request must look like: plain data, checked for its shape, its size, and its depth and width.

The library that compiles it has limits of its own, for memory and for the work of a step; but it reaches some of
them in the middle of an answer. What is refused here is refused before anything begins, by its number.
"""

from __future__ import annotations

import enum
import json as json_text
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Self

from pagemesh.errors import InvalidRequestError
from pagemesh.sampling.structured.schemas import check_bounds, check_values, schema_values

PARAM: Final = "structured_outputs"
"""The request's field, as errors name it."""


class StructuredKind(enum.Enum):
    """How the output is described, by vLLM's names."""

    JSON = "json"
    """A JSON schema."""

    REGEX = "regex"
    """A regular expression that the whole output matches."""

    CHOICE = "choice"
    """A list of texts, one of which is the output."""

    GRAMMAR = "grammar"
    """A context-free grammar in Lark's syntax or in GBNF or EBNF with `::=`."""

    JSON_OBJECT = "json_object"
    """Any JSON object."""


MAX_BYTES: Final = {
    StructuredKind.JSON: 128 * 1024,
    StructuredKind.CHOICE: 128 * 1024,
    StructuredKind.REGEX: 16 * 1024,
    StructuredKind.GRAMMAR: 128 * 1024,
}
"""Longest texts in UTF-8. What takes longest to compile grows with the square of it; the names and values
of OpenAI's largest schemas have 120,000 characters."""

MAX_RULE_BYTES: Final = 16 * 1024
"""Longest grammars without the JSON schemas in them: chains of rules are followed by recursion."""

MAX_WHITESPACE_CHARS: Final = 1024
"""Of an expression that stands between all parts of JSON."""

MAX_DEPTH: Final = 100
"""Of objects and lists in a schema, and of brackets in an expression."""

MAX_ALTERNATIVES: Final = 10_000
"""Of choices, and values of an `enum`; of more, the library gives up behind the first token."""

MAX_SUBSCHEMAS: Final = 500
"""Of one `anyOf`, `oneOf` or `allOf`."""

MAX_OPTIONAL_PROPERTIES: Final = 600
"""Of one object: each may follow any before it, of which each step takes account."""

MAX_MULTIPLE_DIGITS: Final = 4
"""Of a `multipleOf`, without zeros around them: there is a state for each remainder, and seven digits take seconds."""

MAX_REPETITIONS: Final = 10_000
"""That an expression or a rule may ask for."""

_REPEATED: Final = re.compile(r"\{ *(\d*) *(?:, *(\d*) *)?\}")
_REPEATED_IN_LARK: Final = re.compile(r"~ *(\d+)(?: *\.\. *(\d+))?")
_BRACKETS: Final = re.compile(r"\\.|[()]", re.DOTALL)

_INLINE_SCHEMA: Final = re.compile(r"%json\s*(?={)")

JSON_WHITESPACE: Final = "( |\\n[ \\t]{0,64})?"
"""What may stand between the parts of JSON: all that one writes on one line or indented, but no endless
blanks, in which small models lose themselves."""


@dataclass(frozen=True, slots=True)
class StructuredOutputs:
    """One description of an output; equal ones compile to equal grammars."""

    kind: StructuredKind

    text: str = ""
    """The schema, expression or grammar; the choices as a JSON list; empty for any JSON object."""

    disable_any_whitespace: bool = False
    """JSON without whitespace between its parts."""

    whitespace_pattern: str | None = None
    """Regular expression of what may stand between the parts of JSON; None is a space or an indented
    line."""

    @classmethod
    def of(
        cls,
        *,
        json: str | Mapping[str, Any] | None = None,
        regex: str | None = None,
        choice: Sequence[str] | None = None,
        grammar: str | None = None,
        json_object: bool | None = None,
        disable_any_whitespace: bool = False,
        whitespace_pattern: str | None = None,
    ) -> Self:
        """From vLLM's parameters, of which exactly one says what the output is.

        Raises InvalidRequestError when there is none or more than one, or for one that is faulty or too
        long.
        """
        texts = {
            StructuredKind.JSON: None if json is None else _schema_text(json),
            StructuredKind.REGEX: regex,
            StructuredKind.CHOICE: None if choice is None else _choice_text(choice),
            StructuredKind.GRAMMAR: grammar,
            StructuredKind.JSON_OBJECT: "" if json_object else None,
        }
        given = {kind: text for kind, text in texts.items() if text is not None}
        if len(given) != 1:
            raise InvalidRequestError(
                "You must use exactly one kind of structured outputs constraint"
                f" ({', '.join(kind.value for kind in StructuredKind)}), but"
                f" {' and '.join(kind.value for kind in given) or 'none'} are specified",
                param=PARAM,
            )
        ((kind, text),) = given.items()
        _check_size(kind, text)
        _check_complexity(kind, text)
        if whitespace_pattern is not None:
            _check_whitespace(whitespace_pattern)
        return cls(kind, text, disable_any_whitespace, whitespace_pattern)


def _schema_text(schema: str | Mapping[str, Any]) -> str:
    """The schema as JSON; a text is checked and stays what it is."""
    try:
        if not isinstance(schema, str):
            # First: writing it out is done by recursion.
            check_schema("structured_outputs.json", schema, PARAM)
            return json_text.dumps(schema, ensure_ascii=False, allow_nan=False)
        value = json_text.loads(schema)
    except (ValueError, TypeError, RecursionError) as error:
        raise InvalidRequestError(
            f"structured_outputs.json is not valid JSON: {error}", param=PARAM
        ) from error
    if not isinstance(value, dict):
        raise InvalidRequestError(
            "structured_outputs.json must be a JSON schema, which is an object", param=PARAM
        )
    return schema


def _choice_text(choices: Sequence[str]) -> str:
    if not choices or isinstance(choices, str) or not all(isinstance(c, str) for c in choices):
        raise InvalidRequestError(
            "structured_outputs.choice must be a list of at least one string", param=PARAM
        )
    return json_text.dumps(list(choices), ensure_ascii=False)


def _check_size(kind: StructuredKind, text: str) -> None:
    if kind is StructuredKind.JSON_OBJECT:
        return
    if not text:
        raise InvalidRequestError(f"structured_outputs.{kind.value} is empty", param=PARAM)
    try:
        num_bytes = len(text.encode())
    except UnicodeEncodeError as error:
        raise InvalidRequestError(
            f"structured_outputs.{kind.value} is not valid Unicode: {error.reason}", param=PARAM
        ) from error
    if kind is StructuredKind.GRAMMAR and num_bytes > MAX_RULE_BYTES:
        rules = _without_schemas(text)
        num_rule_bytes = len(rules.encode())
        if num_rule_bytes > MAX_RULE_BYTES:
            raise InvalidRequestError(
                f"structured_outputs.grammar has {num_rule_bytes} bytes besides its JSON schemas, but"
                f" at most {MAX_RULE_BYTES} are allowed",
                param=PARAM,
            )
    if num_bytes > MAX_BYTES[kind]:
        raise InvalidRequestError(
            f"structured_outputs.{kind.value} has {num_bytes} bytes, but at most"
            f" {MAX_BYTES[kind]} are allowed",
            param=PARAM,
        )


def _check_complexity(kind: StructuredKind, text: str) -> None:
    name = f"structured_outputs.{kind.value}"
    match kind:
        case StructuredKind.JSON:
            check_schema(name, json_text.loads(text), PARAM)
        case StructuredKind.CHOICE:
            check_choices(name, text, PARAM)
        case StructuredKind.REGEX:
            check_expression(name, text, PARAM)
        case StructuredKind.GRAMMAR:
            check_rules(name, _without_schemas(text), PARAM)
            for _, _, schema in inline_schemas(text):
                check_schema(f"a schema of {name}", schema, PARAM)


def _check_whitespace(pattern: str) -> None:
    if len(pattern) > MAX_WHITESPACE_CHARS:
        raise InvalidRequestError(
            f"structured_outputs.whitespace_pattern has {len(pattern)} characters, but at most"
            f" {MAX_WHITESPACE_CHARS} are allowed",
            param=PARAM,
        )
    check_expression("structured_outputs.whitespace_pattern", pattern, PARAM)


def inline_schemas(grammar: str) -> Iterator[tuple[int, int, Any]]:
    """Start, end and value of the JSON behind each `%json` of a grammar."""
    position = 0
    decoder = json_text.JSONDecoder()
    while found := _INLINE_SCHEMA.search(grammar, position):
        position = found.end()
        try:
            schema, position = decoder.raw_decode(grammar, position)
        except (ValueError, RecursionError):
            continue
        yield found.end(), position, schema


def _without_schemas(grammar: str) -> str:
    """A grammar without its schemas, in which no rule can hide."""
    parts: list[str] = []
    position = 0
    for start, end, _ in inline_schemas(grammar):
        parts.append(grammar[position:start])
        position = end
    return "".join([*parts, grammar[position:]])


def check_schema(name: str, schema: object, param: str) -> None:
    """Raise InvalidRequestError, with the number, for a schema that is too deep or wide anywhere."""
    for depth, value in schema_values(schema):
        _require(depth <= MAX_DEPTH, param, f"{name} is nested {depth} deep", MAX_DEPTH)
        if not isinstance(value, dict):
            continue
        for key, most in (
            ("enum", MAX_ALTERNATIVES),
            ("anyOf", MAX_SUBSCHEMAS),
            ("oneOf", MAX_SUBSCHEMAS),
            ("allOf", MAX_SUBSCHEMAS),
        ):
            given = value.get(key)
            if isinstance(given, list):
                _require(len(given) <= most, param, f"{name} has {len(given)} in one {key}", most)
        num_optional = _num_optional(value)
        _require(
            num_optional <= MAX_OPTIONAL_PROPERTIES,
            param,
            f"{name} has {num_optional} optional properties in one object",
            MAX_OPTIONAL_PROPERTIES,
        )
        check_values(name, [value.get("const"), value.get("enum")], param)
        check_bounds(name, value, param)
        _check_multiple(name, value.get("multipleOf"), param)
        if isinstance(pattern := value.get("pattern"), str):
            check_expression(f"a pattern of {name}", pattern, param)


def _num_optional(schema: dict[str, Any]) -> int:
    properties, required = schema.get("properties"), schema.get("required")
    if not isinstance(properties, dict):
        return 0
    needed = (
        {each for each in required if isinstance(each, str)}
        if isinstance(required, list)
        else set()
    )
    return len(properties.keys() - needed)


def _check_multiple(name: str, multiple: object, param: str) -> None:
    if not isinstance(multiple, (int, float)):
        return
    digits = f"{multiple}".partition("e")[0].replace(".", "").strip("-0")
    _require(
        len(digits) <= MAX_MULTIPLE_DIGITS,
        param,
        f"a multipleOf of {name} has {len(digits)} digits",
        MAX_MULTIPLE_DIGITS,
    )


def check_choices(name: str, text: str, param: str) -> None:
    """Likewise for choices, which are a JSON list."""
    num_choices = len(json_text.loads(text))
    _require(
        num_choices <= MAX_ALTERNATIVES, param, f"{name} has {num_choices} texts", MAX_ALTERNATIVES
    )


def check_expression(name: str, text: str, param: str) -> None:
    """Likewise for a regular expression."""
    _check_repetitions(name, _REPEATED, text, param)
    depth = deepest = 0
    for bracket in _BRACKETS.findall(text):
        depth += {"(": 1, ")": -1}.get(bracket, 0)
        deepest = max(deepest, depth)
    _require(deepest <= MAX_DEPTH, param, f"{name} is nested {deepest} deep", MAX_DEPTH)


def check_rules(name: str, text: str, param: str) -> None:
    """Likewise for a grammar."""
    check_expression(name, text, param)
    _check_repetitions(name, _REPEATED_IN_LARK, text, param)


def _check_repetitions(name: str, syntax: re.Pattern[str], text: str, param: str) -> None:
    # Python reads no number of thousands of digits.
    counts = (int(count[:12]) for found in syntax.findall(text) for count in found if count)
    most = max(counts, default=0)
    _require(
        most <= MAX_REPETITIONS, param, f"{name} repeats something {most} times", MAX_REPETITIONS
    )


def _require(condition: bool, param: str, what: str, most: int) -> None:
    if not condition:
        raise InvalidRequestError(f"{what}, but at most {most} are allowed", param=param)
