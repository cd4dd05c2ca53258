"""Who writes the answer of a conversation in a dialect's words."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from pagemesh.errors import PagemeshError
from pagemesh.router.chat.delta import ChatDelta
from pagemesh.router.generation.request import Usage


class ChatWriter(Protocol):
    """Writes the answer to one request, either as a whole or as events."""

    def whole(self, deltas: Sequence[ChatDelta], usage: Usage) -> dict[str, Any]:
        """The body of an answer that is not streamed; each choice is one delta, with all of it."""
        ...

    def keepalive(self) -> bytes:
        """Frames that show that the request is alive while nothing else is known."""
        ...

    def events(self, delta: ChatDelta) -> bytes:
        """Frames for what became known about a choice; may be empty."""
        ...

    def end(self, usage: Usage) -> bytes:
        """The last frames of a stream, behind all choices."""
        ...

    def failure(self, error: PagemeshError) -> bytes:
        """The last frames of a stream that has begun and cannot go on."""
        ...
