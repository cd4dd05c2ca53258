"""Requests as a trace has them: when they come, how long they are, and which of them begin alike.

Texts are not simulated. A prompt is a row of spans, each a piece of some text from its beginning on; a span's
text says everything in front of it, too, as the nodes of a tree of prefixes do. So two prompts are equal up to
a token if and only if they have it in the same text, and a block is named by the text of its last token and its
number: a stand-in for the chain of hashes that engine and router compute, with names as long as theirs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple


class Span(NamedTuple):
    """A piece of a prompt."""

    text: int
    """Number of the text that it is part of."""
    end: int
    """Tokens of the prompt up to its end."""


@dataclass(frozen=True, slots=True)
class TraceRequest:
    """One request of a trace."""

    arrival: float
    """Seconds since the trace began; of a later turn, seconds since the turn in front of it ended."""

    prompt: tuple[Span, ...]
    """Never empty, ends grow."""

    num_output_tokens: int
    """At least one."""

    output_text: int
    """The text that what is generated is part of; that of the prompt's last span where a later turn has it
    in its prompt."""

    after: int | None = None
    """Number of the turn in front of it, None for the first one."""

    @property
    def num_prompt_tokens(self) -> int:
        """Length of the prompt."""
        return self.prompt[-1].end

    @property
    def num_total_tokens(self) -> int:
        """Prompt and output."""
        return self.num_prompt_tokens + self.num_output_tokens


Trace = Sequence[TraceRequest]
"""Requests in order of arrival; a turn is behind the one in front of it."""

Namer = Callable[[TraceRequest, int], list[bytes]]
"""Gives the 16-byte names of the first so many blocks of a request's prompt and output."""

_NUMBERS: list[bytes] = []
"""Block numbers as names have them."""


def block_names(request: TraceRequest, num_blocks: int, block_size: int) -> list[bytes]:
    """16-byte names of the first blocks of a request's prompt and output."""
    while len(_NUMBERS) < num_blocks:
        _NUMBERS.append(len(_NUMBERS).to_bytes(8, "little"))
    names: list[bytes] = []
    for text, end in (*request.prompt, Span(request.output_text, request.num_total_tokens)):
        # The blocks whose last token is in the span.
        last = min(end // block_size, num_blocks)
        first = len(names)
        if last > first:
            prefix = text.to_bytes(8, "little")
            names += [prefix + number for number in _NUMBERS[first:last]]
    return names


class SharedCache:
    """An endless cache that all workers share: no routing can hit more than it does."""

    def __init__(self, block_size: int) -> None:
        self._block_size = block_size
        self._ends: dict[int, int] = {}

    def visit(self, request: TraceRequest) -> int:
        """Tokens of the prompt that some request before it had; from now on its own are there, too."""
        num_held = 0
        for text, end in request.prompt:
            known = self._ends.get(text, 0)
            num_held = max(num_held, min(known, end))
            if known < end:
                break
        for text, end in (*request.prompt, Span(request.output_text, request.num_total_tokens)):
            self._ends[text] = max(end, self._ends.get(text, 0))
        # The last token is always computed.
        num_blocks = num_held // self._block_size
        return min(num_blocks * self._block_size, request.num_prompt_tokens - 1)
