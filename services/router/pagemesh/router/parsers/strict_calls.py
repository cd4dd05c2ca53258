"""Grammars for models that choose whether they call tools, of which some want their schema to be followed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, Final

from pagemesh.router.parsers.answer_start import AnswerStart
from pagemesh.router.parsers.forced import CallSyntax, Tool
from pagemesh.router.parsers.grammar_text import ANYTHING, joined

_ANY_OBJECT: Final[dict[str, Any]] = {"type": "object"}


def strict_grammar(
    tool_parser: str, start: AnswerStart, tools: Sequence[Tool], *, parallel: bool
) -> str:
    """A grammar, for `StructuredOutputs.of(grammar=…)`, of answers that may call these tools, and may not.

    Arguments fit the schema of a strict tool, and are any object for the others. What does not begin a call
    is any text; once it begins one, as the model was trained to, it goes on as a call, of one of the tools.
    Arguments, errors and the reasoning that comes first are those of `forced_grammar`. The idea is vLLM's
    and XGrammar's structural tags.
    """
    syntax = CallSyntax.of(tool_parser, start.token_id)
    thoughts = start.thoughts(syntax.format.begins_with)
    return "\n".join(
        [
            joined("start:", thoughts.symbol, f"(before block){'*' if parallel else '?'}", "TEXT"),
            *thoughts.rules,
            *_text_rules(syntax),
            *_block_rules(syntax, list(map(_free, tools)), parallel),
        ]
    )


def _beginning(syntax: CallSyntax) -> str:
    """What only calls begin with."""
    return syntax.format.begins_with or syntax.way.before or syntax.way.opening


def _text_rules(syntax: CallSyntax) -> Iterator[str]:
    """`before`, a text and the beginning of calls behind it, and `TEXT` without any."""
    beginning = _beginning(syntax)
    written = syntax.text.of(beginning)
    if syntax.text.has_token(beginning):
        yield joined("before:", "TEXT", written)
        yield f"TEXT: {ANYTHING}"
    else:
        # Texts end where calls begin; none may look like a call that the grammar does not know.
        looks = syntax.format.call_pattern
        call = written if looks is None else f"/{looks}/"
        yield f"before[suffix={written}]: TEXT"
        yield f"TEXT: {ANYTHING} & ~({ANYTHING} {call} {ANYTHING})"


def _block_rules(syntax: CallSyntax, tools: Sequence[Tool], parallel: bool) -> Iterator[str]:
    """`block`, calls whose beginning is there already, and what it needs."""
    way, text, beginning = syntax.way, syntax.text, _beginning(syntax)
    if not way.before:
        # Every call has a beginning of its own.
        yield joined("block:", "call", text.of(way.after))
        yield from syntax.rules(way.opening.removeprefix(beginning), tools)
        return
    opening = text.of(way.before.removeprefix(beginning))
    more = syntax.more_calls() if parallel else ""
    yield joined("block:", opening, "call", more, text.of(way.after))
    yield from syntax.rules(way.opening, tools)


def _free(tool: Tool) -> Tool:
    """The tool, with any object for its arguments unless it is strict."""
    return tool if tool.is_strict else replace(tool, parameters=_ANY_OBJECT)
