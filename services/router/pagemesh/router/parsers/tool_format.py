"""One way in which models write tool calls."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from pagemesh.router.parsers.output import CallOutput
from pagemesh.router.parsers.source import Reading, Source

TokenId = Callable[[str], int | None]
"""The id of a text that is a token of its own, added to the vocabulary; None for all others."""


VLLM_ID_PREFIX: Final = "chatcmpl-tool-"


def vllm_id(random_hex: str) -> str:
    """The id of a call as vLLM writes it."""
    return VLLM_ID_PREFIX + random_hex


@dataclass(frozen=True, slots=True)
class WrittenCalls:
    """What a model writes around names and arguments."""

    opening: str
    """Before a call's name."""

    middle: str
    """Between name and arguments."""

    closing: str
    """Behind a call's arguments."""

    separator: str
    """Between two calls."""

    before: str = ""
    """Before the first call."""

    after: str = ""
    """Behind the last call."""

    is_name_json: bool = False
    """Whether the name is in a JSON string."""

    needs: str | None = None
    """A marker that models have as a token of their own when they write calls in this way."""


@dataclass(frozen=True, slots=True)
class ToolFormat:
    """How answers are read that contain calls in one format."""

    read: Callable[[Source, CallOutput], Reading[None]]
    """Reads an answer to its end, whatever comes."""

    written: tuple[WrittenCalls, ...]
    """How a model writes calls that it must write: the first of the ways that it knows."""

    markers: frozenset[str]
    """Special tokens among its text; a model may have them as ordinary text, too."""

    begins_with: str | None
    """What every call begins with, so that none begins without it."""

    call_pattern: str | None = None
    """A regular expression of all that calls may begin with, where there is no `begins_with`."""

    call_id: Callable[[str], str] = vllm_id
    """The id of a call, made of 32 random hexadecimal digits."""

    def written_with(self, token_id: TokenId) -> WrittenCalls:
        """How a model with these tokens writes calls."""
        for way in self.written[:-1]:
            if way.needs is not None and token_id(way.needs) is not None:
                return way
        return self.written[-1]
