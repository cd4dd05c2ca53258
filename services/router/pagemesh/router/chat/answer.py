"""The answer of a conversation: the texts of its choices taken apart, then written by a dialect."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pagemesh.errors import PagemeshError
from pagemesh.router.chat.choice_reader import ChoiceReader, with_thoughts
from pagemesh.router.chat.writer import ChatWriter
from pagemesh.router.generation.request import ChoiceDelta, Usage
from pagemesh.router.openai.responses import CollectedChoice


class ChatAnswer:
    """A `Responder` for any dialect."""

    def __init__(self, writer: ChatWriter, readers: Sequence[ChoiceReader]) -> None:
        """Each choice has a reader of its own."""
        self._writer = writer
        self._readers = readers

    def whole(self, choices: Sequence[CollectedChoice], usage: Usage) -> dict[str, Any]:
        """The body of an answer that is not streamed."""
        deltas = [
            reader.push(choice.as_delta(index))
            for index, (reader, choice) in enumerate(zip(self._readers, choices, strict=False))
        ]
        return self._writer.whole(deltas, with_thoughts(usage, self._readers))

    def keepalive(self) -> bytes:
        """As the dialect says it."""
        return self._writer.keepalive()

    def events(self, delta: ChoiceDelta) -> bytes:
        """Frames for what became known about a choice; may be empty."""
        return self._writer.events(self._readers[delta.index].push(delta))

    def end(self, usage: Usage) -> bytes:
        """The last frames of a stream, behind all choices."""
        return self._writer.end(with_thoughts(usage, self._readers))

    def failure(self, error: PagemeshError) -> bytes:
        """The last frames of a stream that has begun and cannot go on."""
        return self._writer.failure(error)
