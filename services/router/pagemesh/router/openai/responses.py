"""What both kinds of answer have in common: how a servicer fills one, as a whole or as events."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from pagemesh.router.generation.request import ChoiceDelta, StopReason, Usage


@dataclass(slots=True)
class CollectedChoice:
    """A choice that is answered as a whole."""

    text: list[str] = field(default_factory=list)
    """Its pieces."""

    stop_reason: StopReason | None = None


class Responder(Protocol):
    """Writes the answer to one request."""

    def whole(self, choices: Sequence[CollectedChoice], usage: Usage) -> dict[str, Any]:
        """The body of an answer that is not streamed."""
        ...

    def events(self, delta: ChoiceDelta) -> bytes:
        """Frames for what became known about a choice; may be empty."""
        ...

    def usage_event(self, usage: Usage) -> bytes:
        """The frame with the token counts, the last one of a stream that was asked for them."""
        ...


def usage_object(usage: Usage) -> dict[str, Any]:
    """The `usage` object."""
    return {
        "prompt_tokens": usage.num_prompt_tokens,
        "completion_tokens": usage.num_completion_tokens,
        "total_tokens": usage.num_prompt_tokens + usage.num_completion_tokens,
        "prompt_tokens_details": {"cached_tokens": usage.num_cached_tokens},
    }
