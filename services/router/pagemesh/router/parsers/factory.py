"""Finds parsers by the names that vLLM gives them."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping
from typing import Final

from pagemesh.errors import ConfigError
from pagemesh.router.parsers.interface import AnswerParser, ParsedPiece


def tool_parser_names() -> tuple[str, ...]:
    """All values of `--tool-call-parser`."""
    return tuple(_TOOL_MARKERS)


def reasoning_parser_names() -> tuple[str, ...]:
    """All values of `--reasoning-parser`."""
    return tuple(_REASONING_MARKERS)


def parser_markers(tool_parser: str | None, reasoning_parser: str | None) -> frozenset[str]:
    """Special tokens that the text must show for these parsers, of which any model has only some.

    Raises ConfigError for a name that is not known, with those that are.
    """
    _require_known("tool-call-parser", tool_parser, tool_parser_names())
    _require_known("reasoning-parser", reasoning_parser, reasoning_parser_names())
    return _TOOL_MARKERS.get(tool_parser or "", frozenset()) | _REASONING_MARKERS.get(
        reasoning_parser or "", frozenset()
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
    parser_markers(tool_parser, reasoning_parser)
    return PlainParser()


class PlainParser:
    """Implements `AnswerParser`: everything is content."""

    def push(self, text: str) -> ParsedPiece:
        """The text."""
        return ParsedPiece(text)

    def finish(self) -> ParsedPiece:
        """Nothing."""
        return ParsedPiece()


_TOOL_MARKERS: Final[Mapping[str, frozenset[str]]] = {
    "hermes": frozenset({"<tool_call>", "</tool_call>"}),
    "llama3_json": frozenset({"<|python_tag|>"}),
    "llama4_json": frozenset({"<|python_tag|>"}),
    "mistral": frozenset({"[TOOL_CALLS]", "[ARGS]", "[CALL_ID]"}),
    "deepseek_v3": frozenset(
        {
            "<｜tool▁calls▁begin｜>",
            "<｜tool▁call▁begin｜>",
            "<｜tool▁sep｜>",
            "<｜tool▁call▁end｜>",
            "<｜tool▁calls▁end｜>",
        }
    ),
}

_REASONING_MARKERS: Final[Mapping[str, frozenset[str]]] = {
    "deepseek_r1": frozenset({"<think>", "</think>"}),
    "qwen3": frozenset({"<think>", "</think>"}),
}


def _require_known(setting: str, name: str | None, known: tuple[str, ...]) -> None:
    if name is not None and name not in known:
        raise ConfigError(f'{setting} is "{name}", but it must be one of {", ".join(known)}')
