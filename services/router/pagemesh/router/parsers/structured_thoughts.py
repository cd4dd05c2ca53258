"""Structured outputs behind reasoning: the description is of the answer, not of the thoughts before it."""

from __future__ import annotations

import json
import re
from typing import Any, Final

from pagemesh.errors import UnsupportedError
from pagemesh.router.parsers.answer_start import AnswerStart
from pagemesh.router.parsers.grammar_text import joined
from pagemesh.sampling.structured.outputs import (
    JSON_WHITESPACE,
    PARAM,
    StructuredKind,
    StructuredOutputs,
)

_IN_REGEX: Final = re.compile(r"\\.|/|\n", re.DOTALL)
_ESCAPED: Final = {"/": r"\/", "\n": r"\n"}
_IS_LARK: Final = re.compile(r"^\s*(%llguidance\b|start\s*:)", re.MULTILINE)


def behind_thoughts(outputs: StructuredOutputs, start: AnswerStart) -> StructuredOutputs:
    """What describes reasoning and then these outputs; the same where there is no reasoning.

    Raises UnsupportedError for grammars that are not in Lark's syntax, and InvalidRequestError for
    descriptions that are too long for it.
    """
    thoughts = start.thoughts()
    if not thoughts.symbol:
        return outputs
    rules = [joined("start:", thoughts.symbol, "answer"), *thoughts.rules, _answer_rule(outputs)]
    return StructuredOutputs.of(grammar="\n".join(rules))


def _answer_rule(outputs: StructuredOutputs) -> str:
    match outputs.kind:
        case StructuredKind.JSON:
            return _json_rule(json.loads(outputs.text), outputs)
        case StructuredKind.JSON_OBJECT:
            return _json_rule({"type": "object"}, outputs)
        case StructuredKind.REGEX:
            return f"answer: /{_IN_REGEX.sub(_escaped, outputs.text)}/"
        case StructuredKind.CHOICE:
            choices = (json.dumps(text, ensure_ascii=False) for text in json.loads(outputs.text))
            return f"answer: {' | '.join(choices)}"
        case StructuredKind.GRAMMAR:
            if not _IS_LARK.search(outputs.text):
                raise UnsupportedError(
                    "structured_outputs.grammar behind reasoning must be in Lark's syntax",
                    param=PARAM,
                )
            return f"answer: %lark {{\n{outputs.text}\n}}"


def _json_rule(schema: dict[str, Any], outputs: StructuredOutputs) -> str:
    whitespace = outputs.whitespace_pattern
    if whitespace is None and not outputs.disable_any_whitespace:
        whitespace = JSON_WHITESPACE
    given = schema.get("x-guidance")
    guidance = {
        **(given if isinstance(given, dict) else {}),
        "whitespace_flexible": not outputs.disable_any_whitespace,
        "whitespace_pattern": whitespace,
    }
    return f"answer: %json {json.dumps({**schema, 'x-guidance': guidance}, ensure_ascii=False)}"


def _escaped(found: re.Match[str]) -> str:
    return _ESCAPED.get(found.group(), found.group())
