"""Grammars of answers that are calls or have a form, as the model chooses, and what the two are told apart by."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from pagemesh.errors import UnsupportedError
from pagemesh.router.parsers.answer_start import AnswerStart
from pagemesh.router.parsers.forced import CallSyntax, Tool, arguments_schema
from pagemesh.router.parsers.grammar_text import joined, literal
from pagemesh.router.parsers.structured_thoughts import answer_rules, json_style
from pagemesh.sampling.structured.outputs import PARAM, StructuredKind, StructuredOutputs
from pagemesh.sampling.structured.schemas import GUIDANCE

_BESIDE: Final = "beside tools"
_BLANKS: Final = r"[ \t\r\n]*"
"""Between the parts of JSON."""


@dataclass(frozen=True, slots=True)
class CallOrForm:
    """The answers to one request with tools and a form."""

    syntax: CallSyntax
    tools: Sequence[Tool]
    outputs: StructuredOutputs
    """The form."""

    def grammar(self, start: AnswerStart, *, parallel: bool) -> str:
        """A grammar, for `StructuredOutputs.of(grammar=…)`, of calls as in `forced_grammar`, or of the form.

        Raises as there, and UnsupportedError for grammars that cannot stand beside calls.
        """
        syntax, way = self.syntax, self.syntax.way
        thoughts = start.thoughts(syntax.format.begins_with)
        more = syntax.more_calls() if parallel else ""
        calls = joined(
            "calls:", syntax.text.of(way.before), "call", more, syntax.text.of(way.after)
        )
        return "\n".join(
            [
                joined("start:", thoughts.symbol, "(calls | answer)"),
                *thoughts.rules,
                calls,
                *self._rules(),
            ]
        )

    def call_heads(self) -> re.Pattern[str]:
        """What calls begin with, up to their arguments, and nothing else is a call."""
        way = self.syntax.way
        names = "|".join(re.escape(self.syntax.written_name(tool)) for tool in self.tools)
        if self.syntax.is_bare:
            name, arguments = self._keys()
            parts = (r"\{", f'"{name}"', ":", f'"({names})"', ",", f'"{arguments}"', ":")
            return re.compile(_BLANKS.join(parts))
        return re.compile(
            re.escape(way.before + way.opening) + f"({names})" + re.escape(way.middle)
        )

    def _rules(self) -> list[str]:
        """The rules `call` and `answer`."""
        syntax, way, kind = self.syntax, self.syntax.way, self.outputs.kind
        if not syntax.is_bare:
            opening = way.before + way.opening
            # Where it has tokens of its own, no text is it.
            is_text = syntax.text.of(opening) == literal(opening)
            but_not = literal(opening) if is_text else ""
            calls = syntax.rules(way.opening, self.tools)
            return [*calls, *answer_rules(self.outputs, _BESIDE, but_not=but_not)]
        if kind is StructuredKind.GRAMMAR:
            raise UnsupportedError(
                f"structured_outputs.grammar {_BESIDE} is not possible with a model whose calls have no"
                " mark to begin with",
                param=PARAM,
            )
        if kind in (StructuredKind.JSON, StructuredKind.JSON_OBJECT):
            return [*self._json_calls(), *answer_rules(self.outputs, _BESIDE)]
        calls = syntax.rules("", self.tools, lead=way.opening)
        return [*calls, *answer_rules(self.outputs, _BESIDE, but_not=self._head_text())]

    def _json_calls(self) -> Iterator[str]:
        """The rule `call` for calls that are bare JSON: written as the answers are, so that either may go on."""
        name, arguments = self._keys()
        yield "call: " + " | ".join(f"c{index}" for index in range(len(self.tools)))
        for index, tool in enumerate(self.tools):
            inner = arguments_schema(tool)
            guidance = {**inner.pop(GUIDANCE), **json_style(self.outputs)}
            call = {
                "type": "object",
                # With an id of its own, references in it stay those within it.
                "properties": {
                    name: {"const": tool.name},
                    arguments: {"$id": "urn:arguments", **inner},
                },
                "required": [name, arguments],
                "additionalProperties": False,
                GUIDANCE: guidance,
            }
            yield f"c{index}: %json {json.dumps(call, ensure_ascii=False)}"

    def _head_text(self) -> str:
        """What no text may begin with that is not JSON: as `call_heads`."""
        name, arguments = self._keys()
        names = " | ".join(
            literal(json.dumps(tool.name, ensure_ascii=False)) for tool in self.tools
        )
        parts = ("{", f'"{name}"', ":", None, ",", f'"{arguments}"', ":")
        return f" /{_BLANKS}/ ".join(
            f"({names})" if part is None else literal(part) for part in parts
        )

    def _keys(self) -> tuple[str, str]:
        """Of the name and the arguments in a call that is bare JSON."""
        way = self.syntax.way
        name, arguments = json.loads(f"{way.opening}{way.middle}null{way.closing}")
        return name, arguments
