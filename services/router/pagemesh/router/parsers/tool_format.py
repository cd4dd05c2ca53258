"""One way in which models write tool calls."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from pagemesh.router.parsers.output import CallOutput
from pagemesh.router.parsers.source import Reading, Source


def vllm_id(random_hex: str) -> str:
    """The id of a call as vLLM writes it."""
    return f"chatcmpl-tool-{random_hex}"


@dataclass(frozen=True, slots=True)
class ToolFormat:
    """How answers are read that contain calls in one format."""

    read: Callable[[Source, CallOutput], Reading[None]]
    """Reads an answer to its end, whatever comes."""

    markers: frozenset[str]
    """Special tokens among its text; a model may have them as ordinary text, too."""

    begins_with: str | None
    """What every call begins with, so that none begins without it."""

    call_id: Callable[[str], str] = vllm_id
    """The id of a call, made of 32 random hexadecimal digits."""
