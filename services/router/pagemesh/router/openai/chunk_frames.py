"""Frames of streamed choices. Most carry a piece of text and nothing else: those are put together from parts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic_core import to_json

from pagemesh.router.openai.sse import encode_json

_PLACE = "\ue000"


class ChunkFrames:
    """Frames that have the same head, and one choice each."""

    def __init__(
        self, head: Mapping[str, Any], tail: Mapping[str, Any], plain_choice: Mapping[str, Any]
    ) -> None:
        """`plain_choice` is a choice with text alone, of index 0 and with its text between two texts.

        It has the strings of `text_place` where the text goes.
        """
        self._head = b"data: " + encode_json(head)[:-1] + b',"choices":['
        self._tail = b"]" + _inner(tail) + b"}\n\n"
        before, after = encode_json(plain_choice).split(encode_json({"": _PLACE})[4:-1])
        # Behind the index, which comes first.
        self._before = before.removeprefix(b'{"index":0')
        self._after = after + self._tail

    @staticmethod
    def text_place() -> str:
        """Stands for the text in `plain_choice`."""
        return _PLACE

    def text(self, index: int, text: str) -> bytes:
        """A frame with text alone."""
        return b'%s{"index":%d%s%s%s' % (
            self._head,
            index,
            self._before,
            to_json(text),
            self._after,
        )

    def frame(self, choice: Mapping[str, Any], more: Mapping[str, Any] | None = None) -> bytes:
        """Any frame; `more` are further fields beside the choices, instead of those of the tail."""
        tail = self._tail if more is None else b"]" + _inner(more) + b"}\n\n"
        return self._head + encode_json(choice) + tail


def _inner(fields: Mapping[str, Any]) -> bytes:
    return b"," + encode_json(fields)[1:-1] if fields else b""
