"""What clients describe, as the library's matchers: its own form of a grammar, its limits, its refusals.

The process that tries grammars is here within a tenth of a second: this loads neither numpy nor logging.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Final

import llguidance

from pagemesh.errors import InvalidRequestError
from pagemesh.sampling.structured.outputs import (
    JSON_WHITESPACE,
    PARAM,
    StructuredKind,
    StructuredOutputs,
    inline_schemas,
)
from pagemesh.sampling.structured.schemas import inner_schemas, round_bounds

_MAX_MESSAGE_CHARS: Final = 300

_PICTURE: Final = re.compile(r"^ *\d+ \| ", re.MULTILINE)
"""How lines of a grammar begin in the library's messages."""

_OWN_WORDS: Final = (
    (
        re.compile(r"\bNoExtensionBias\b"),
        "nothing can be written that satisfies it, as where references lead back to themselves",
    ),
    (
        re.compile(r"\boneOf constraints are not supported\..*"),
        "oneOf is only supported where no value can fit two of its alternatives; anyOf takes any",
    ),
    (re.compile(r"\bUnimplemented keys: "), "these keys are not supported: "),
    (
        re.compile(r"\bResource '(.*?)' is not present.*"),
        r"its reference to \1 leads out of it, and nothing is fetched",
    ),
)
"""What the library says in words of its own code, or of settings that nobody here has, and what it means."""

_MAX_LEXER_STATES: Final = 50_000
"""States of the expressions in a grammar, 1 to 2 kB each, that one request can make; a fifth of the
library's default, and far more than outputs need."""

_MAX_ROW_ITEMS: Final = 2500
"""Ways in which an output may go on that are followed side by side: four for each optional property."""

_LONG_NUMBER: Final = re.compile(r"\d{16}|\d[eE]")
"""That may lie beyond 2^53."""


def make_matcher(
    tokenizer: llguidance.LLTokenizer, outputs: StructuredOutputs
) -> llguidance.LLMatcher:
    """Compile and compute the first mask, which tells whether anything satisfies the grammar."""
    name = f"structured_outputs.{outputs.kind.value}"
    try:
        text = _grammar_text(outputs)
    except ValueError as error:
        raise refusal(f"{name} cannot be compiled", str(error)) from error
    limits = llguidance.LLParserLimits(
        max_lexer_states=_MAX_LEXER_STATES, max_items_in_row=_MAX_ROW_ITEMS, verbose_errors=False
    )
    matcher = llguidance.LLMatcher(tokenizer, text, log_level=0, limits=limits)
    if matcher.is_error():
        raise refusal(f"{name} cannot be compiled", matcher.get_error())
    first = matcher.deep_copy()
    first.compute_bitmask()
    if first.is_error():
        raise refusal(f"{name} allows no output", first.get_error())
    return matcher


def _grammar_text(outputs: StructuredOutputs) -> str:
    """The library's own form of a grammar; ValueError when it cannot be converted."""
    match outputs.kind:
        case StructuredKind.REGEX:
            # Digits, letters and blanks are those of ASCII, as in patterns of schemas.
            text = llguidance.regex_to_lark(outputs.text, "dws")
            return llguidance.LLMatcher.grammar_from_lark(f"start: /{text}/")
        case StructuredKind.CHOICE:
            return _choice_grammar(json.loads(outputs.text))
        case StructuredKind.GRAMMAR:
            return llguidance.grammar_from("grammar", _with_rounded_schemas(outputs.text))
    schema = _rounded(outputs.text) if outputs.kind is StructuredKind.JSON else '{"type": "object"}'
    whitespace = outputs.whitespace_pattern
    if whitespace is None and not outputs.disable_any_whitespace:
        whitespace = JSON_WHITESPACE
    return llguidance.LLMatcher.grammar_from_json_schema(
        schema,
        overrides={
            "whitespace_flexible": not outputs.disable_any_whitespace,
            "whitespace_pattern": whitespace,
        },
    )


def _choice_grammar(choices: Sequence[str]) -> str:
    """One expression for all choices: as rules, all that fit would be followed side by side."""
    texts = " | ".join(json.dumps(choice, ensure_ascii=False) for choice in choices)
    return llguidance.LLMatcher.grammar_from_lark(f"start: CHOICE\nCHOICE: {texts}")


def _rounded(schema: str) -> str:
    """The schema with bounds that are kept."""
    if not _LONG_NUMBER.search(schema):
        return schema
    value = json.loads(schema)
    for inner in inner_schemas(value):
        round_bounds(inner)
    return json.dumps(value, ensure_ascii=False)


def _with_rounded_schemas(grammar: str) -> str:
    parts: list[str] = []
    position = 0
    for start, end, _ in inline_schemas(grammar):
        parts += [grammar[position:start], _rounded(grammar[start:end])]
        position = end
    return "".join([*parts, grammar[position:]])


def refusal(what: str, why: str) -> InvalidRequestError:
    """Of a client's grammar, with the library's reason."""
    return InvalidRequestError(f"{what}: {one_line(why)}", param=PARAM)


def one_line(text: str) -> str:
    """The library's message without its pictures of places."""
    line = " ".join(_PICTURE.split(text.removesuffix("<non-verbose/>"))[0].split())
    for pattern, words in _OWN_WORDS:
        line = pattern.sub(words, line)
    return line if len(line) <= _MAX_MESSAGE_CHARS else f"{line[:_MAX_MESSAGE_CHARS]}…"
