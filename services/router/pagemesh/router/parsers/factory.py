"""Finds parsers by the names that vLLM gives them."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping
from typing import Final, TypeVar

from pagemesh.errors import ConfigError
from pagemesh.router.parsers.deepseek import DEEPSEEK
from pagemesh.router.parsers.hermes import HERMES
from pagemesh.router.parsers.interface import AnswerParser, ParsedPiece
from pagemesh.router.parsers.llama import LLAMA
from pagemesh.router.parsers.mistral import MISTRAL
from pagemesh.router.parsers.output import CallOutput
from pagemesh.router.parsers.reading_parser import ReadingParser, ThinkingFirst
from pagemesh.router.parsers.thinking import DEEPSEEK_R1, QWEN3, ThinkingFormat
from pagemesh.router.parsers.tool_format import ToolFormat

_Format = TypeVar("_Format")

_TOOLS: Final[Mapping[str, ToolFormat]] = {
    "hermes": HERMES,
    "llama3_json": LLAMA,
    "llama4_json": LLAMA,
    "mistral": MISTRAL,
    "deepseek_v3": DEEPSEEK,
    "deepseek_v31": DEEPSEEK,
}

_REASONING: Final[Mapping[str, ThinkingFormat]] = {
    "deepseek_r1": DEEPSEEK_R1,
    "qwen3": QWEN3,
}


def tool_parser_names() -> tuple[str, ...]:
    """All values of `--tool-call-parser`."""
    return tuple(_TOOLS)


def reasoning_parser_names() -> tuple[str, ...]:
    """All values of `--reasoning-parser`."""
    return tuple(_REASONING)


def parser_markers(tool_parser: str | None, reasoning_parser: str | None) -> frozenset[str]:
    """Special tokens that the text must show for these parsers, of which any model has only some.

    Raises ConfigError for a name that is not known, with those that are.
    """
    tools, reasoning = _tools(tool_parser), _reasoning(reasoning_parser)
    return (tools.markers if tools else frozenset()) | (
        reasoning.markers if reasoning else frozenset()
    )


def random_hex() -> str:
    """32 random hexadecimal digits, of which ids of tool calls are made."""
    return uuid.uuid4().hex


def make_parser(
    tool_parser: str | None,
    reasoning_parser: str | None,
    *,
    prompt: str = "",
    new_hex: Callable[[], str] = random_hex,
) -> AnswerParser:
    """A parser for one choice, by names as in vLLM; None leaves tool calls or reasoning in the content.

    `prompt` is the rendered prompt, or its end: a chat template may have begun the reasoning in it, or
    ended it. `new_hex` gives 32 hexadecimal digits for the id of each call. Raises ConfigError for a
    name that is not known, with those that are.
    """
    tools, reasoning = _tools(tool_parser), _reasoning(reasoning_parser)
    calls = None
    if tools is not None:
        call_id = tools.call_id
        calls = ReadingParser(tools.read, CallOutput(lambda: call_id(new_hex())))
    if reasoning is None:
        return calls or PlainParser()
    thoughts = reasoning.start(prompt, tools.begins_with if tools else None)
    return ThinkingFirst(thoughts, calls) if calls else thoughts


class PlainParser:
    """Implements `AnswerParser`: everything is content."""

    def push(self, text: str) -> ParsedPiece:
        """The text."""
        return ParsedPiece(text)

    def finish(self) -> ParsedPiece:
        """Nothing."""
        return ParsedPiece()


def _tools(name: str | None) -> ToolFormat | None:
    return _find("tool-call-parser", name, _TOOLS)


def _reasoning(name: str | None) -> ThinkingFormat | None:
    return _find("reasoning-parser", name, _REASONING)


def _find(setting: str, name: str | None, known: Mapping[str, _Format]) -> _Format | None:
    if name is None:
        return None
    found = known.get(name)
    if found is None:
        raise ConfigError(f'{setting} is "{name}", but it must be one of {", ".join(known)}')
    return found
