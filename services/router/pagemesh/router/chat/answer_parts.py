"""An answer as parts that follow each other: thoughts, text and tool calls, each begun and ended once.

Dialects that give every part of an answer a place of its own write their events from these.
"""

from __future__ import annotations

import enum
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from pagemesh.router.chat.delta import ChatDelta
from pagemesh.sampling.logprobs import TokenLogprobs


class PartKind(enum.Enum):
    """What a part is."""

    REASONING = "reasoning"
    TEXT = "text"
    TOOL_CALL = "tool_call"


@dataclass(slots=True)
class Part:
    """One part, as far as it is known."""

    index: int
    """Of the part in the answer."""

    kind: PartKind

    pieces: list[str] = field(default_factory=list)
    """Of its text; of its arguments, for a tool call."""

    logprobs: list[TokenLogprobs] = field(default_factory=list)
    """Of a text's tokens, when they were asked for."""

    call_id: str = ""
    """Of a tool call."""

    name: str = ""
    """Of the tool that is called."""

    @property
    def text(self) -> str:
        """All pieces."""
        return "".join(self.pieces)

    def bare(self) -> Part:
        """The part as it begins: without its text."""
        return Part(self.index, self.kind, call_id=self.call_id, name=self.name)


class Begun(NamedTuple):
    """A part begins."""

    part: Part


class Grown(NamedTuple):
    """A part has got more text, log probabilities or both."""

    part: Part

    text: str
    """What was added."""

    logprobs: tuple[TokenLogprobs, ...]
    """Those added."""


class Ended(NamedTuple):
    """A part gets nothing more."""

    part: Part


Change = Begun | Grown | Ended


class AnswerParts:
    """Makes parts of one choice's pieces. At most the last part is open.

    Models put line breaks around their thoughts and calls: blanks alone are no part beside others.
    """

    def __init__(self) -> None:
        self.parts: list[Part] = []
        """All that have begun."""
        self._is_open = False
        self._call_index: int | None = None
        # With which a text may begin, and the log probabilities of their tokens.
        self._blanks = ""
        self._waiting: list[TokenLogprobs] = []

    def push(self, delta: ChatDelta) -> Iterator[Change]:
        """What a delta changes, in order; to be iterated to its end. The last one ends the last part."""
        if delta.reasoning:
            yield from self._grow(PartKind.REASONING, delta.reasoning)
        self._waiting += delta.content_logprobs
        if delta.content:
            yield from self._push_text(delta.content)
        for call in delta.tool_calls:
            if call.index != self._call_index:
                self._call_index = call.index
                part = Part(
                    len(self.parts),
                    PartKind.TOOL_CALL,
                    call_id=call.call_id or "",
                    name=call.name or "",
                )
                yield from self._begin(part)
            yield from self._grow(PartKind.TOOL_CALL, call.arguments)
        if delta.stop_reason is not None:
            yield from self._finish()

    def _finish(self) -> Iterator[Change]:
        if self._is_text_open or (self._blanks and not self.parts):
            yield from self._grow_text("")
        yield from self._end()

    @property
    def _is_text_open(self) -> bool:
        return self._is_open and self.parts[-1].kind is PartKind.TEXT

    def _push_text(self, text: str) -> Iterator[Change]:
        if text.isspace() and not self._is_text_open:
            self._blanks += text
        else:
            yield from self._grow_text(text)

    def _grow_text(self, text: str) -> Iterator[Change]:
        scores, self._waiting = tuple(self._waiting), []
        text, self._blanks = self._blanks + text, ""
        yield from self._grow(PartKind.TEXT, text, scores)

    def _grow(
        self, kind: PartKind, text: str, logprobs: tuple[TokenLogprobs, ...] = ()
    ) -> Iterator[Change]:
        if not self._is_open or self.parts[-1].kind is not kind:
            yield from self._begin(Part(len(self.parts), kind))
        if not text and not logprobs:
            return
        part = self.parts[-1]
        part.pieces.append(text)
        part.logprobs += logprobs
        yield Grown(part, text, logprobs)

    def _begin(self, part: Part) -> Iterator[Change]:
        yield from self._end()
        self._blanks, self._waiting = "", []
        self.parts.append(part)
        self._is_open = True
        yield Begun(part)

    def _end(self) -> Iterator[Change]:
        if self._is_open:
            self._is_open = False
            yield Ended(self.parts[-1])
