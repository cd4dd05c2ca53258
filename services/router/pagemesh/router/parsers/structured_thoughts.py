"""Structured outputs as a part of a grammar: the description is of the answer, not of the thoughts before it."""

from __future__ import annotations

import json
import re
from typing import Any, Final

from pagemesh.errors import UnsupportedError
from pagemesh.router.parsers.answer_start import AnswerStart
from pagemesh.router.parsers.grammar_text import ANYTHING, joined
from pagemesh.sampling.structured.outputs import (
    JSON_WHITESPACE,
    PARAM,
    StructuredKind,
    StructuredOutputs,
)
from pagemesh.sampling.structured.schemas import GUIDANCE

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
    answer = answer_rules(outputs, "behind reasoning")
    rules = [joined("start:", thoughts.symbol, "answer"), *thoughts.rules, *answer]
    return StructuredOutputs.of(grammar="\n".join(rules))


def answer_rules(outputs: StructuredOutputs, where: str, *, but_not: str = "") -> list[str]:
    """The rule `answer`, and those that it needs.

    `where` the answer stands is said of grammars that are not in Lark's syntax, for which UnsupportedError is
    raised. `but_not` is what no text may begin with, for descriptions that could be of such a one.
    """
    match outputs.kind:
        case StructuredKind.JSON:
            return [_json_rule(json.loads(outputs.text), outputs)]
        case StructuredKind.JSON_OBJECT:
            return [_json_rule({"type": "object"}, outputs)]
        case StructuredKind.REGEX:
            return _text_rules(f"/{_IN_REGEX.sub(_escaped, outputs.text)}/", but_not)
        case StructuredKind.CHOICE:
            choices = (json.dumps(text, ensure_ascii=False) for text in json.loads(outputs.text))
            return _text_rules(" | ".join(choices), but_not)
        case StructuredKind.GRAMMAR:
            if not _IS_LARK.search(outputs.text):
                raise UnsupportedError(
                    f"structured_outputs.grammar {where} must be in Lark's syntax", param=PARAM
                )
            return [f"answer: %lark {{\n{outputs.text}\n}}"]


def json_style(outputs: StructuredOutputs) -> dict[str, Any]:
    """What may stand between the parts of JSON, as schemas say it to the grammar library."""
    whitespace = outputs.whitespace_pattern
    if whitespace is None and not outputs.disable_any_whitespace:
        whitespace = JSON_WHITESPACE
    return {
        "whitespace_flexible": not outputs.disable_any_whitespace,
        "whitespace_pattern": whitespace,
    }


def _json_rule(schema: dict[str, Any], outputs: StructuredOutputs) -> str:
    given = schema.get(GUIDANCE)
    guidance = {**(given if isinstance(given, dict) else {}), **json_style(outputs)}
    return f"answer: %json {json.dumps({**schema, GUIDANCE: guidance}, ensure_ascii=False)}"


def _text_rules(texts: str, but_not: str) -> list[str]:
    if not but_not:
        return [f"answer: {texts}"]
    return ["answer: ANSWER", f"ANSWER: ({texts}) & ~(({but_not}) {ANYTHING})"]


def _escaped(found: re.Match[str]) -> str:
    return _ESCAPED.get(found.group(), found.group())
