"""All formats, by the names that vLLM gives their parsers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, TypeVar

from pagemesh.errors import ConfigError
from pagemesh.router.parsers.deepseek import DEEPSEEK_V3, DEEPSEEK_V31
from pagemesh.router.parsers.hermes import HERMES
from pagemesh.router.parsers.llama import LLAMA
from pagemesh.router.parsers.mistral import MISTRAL
from pagemesh.router.parsers.thinking import DEEPSEEK_R1, QWEN3, ThinkingFormat
from pagemesh.router.parsers.tool_format import ToolFormat
from pagemesh.tokenizer.thought_span import ThoughtMarks

_Format = TypeVar("_Format")

TOOL_FORMATS: Final[Mapping[str, ToolFormat]] = {
    "hermes": HERMES,
    "llama3_json": LLAMA,
    "llama4_json": LLAMA,
    "mistral": MISTRAL,
    "deepseek_v3": DEEPSEEK_V3,
    "deepseek_v31": DEEPSEEK_V31,
}

THINKING_FORMATS: Final[Mapping[str, ThinkingFormat]] = {
    "deepseek_r1": DEEPSEEK_R1,
    "qwen3": QWEN3,
}


def find_tool_format(name: str) -> ToolFormat:
    """By the name of its parser; ConfigError with those that are known."""
    return _find("tool-call-parser", name, TOOL_FORMATS)


def find_thinking_format(name: str) -> ThinkingFormat:
    """By the name of its parser; ConfigError with those that are known."""
    return _find("reasoning-parser", name, THINKING_FORMATS)


def thought_marks(
    tool_parser: str | None, reasoning_parser: str | None, *, begun: bool | None
) -> ThoughtMarks | None:
    """How an answer's thoughts are marked, by what its parser is made of; None where nobody looks for thoughts."""
    if reasoning_parser is None:
        return None
    call_marker = None if tool_parser is None else find_tool_format(tool_parser).begins_with
    return find_thinking_format(reasoning_parser).marks(begun, call_marker)


def _find(setting: str, name: str, known: Mapping[str, _Format]) -> _Format:
    found = known.get(name)
    if found is None:
        raise ConfigError(f'{setting} is "{name}", but it must be one of {", ".join(known)}')
    return found
