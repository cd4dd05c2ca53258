"""The answer to POST /v1/responses."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Literal

from pagemesh.errors import PagemeshError
from pagemesh.router.chat.answer_parts import AnswerParts
from pagemesh.router.chat.delta import ChatDelta
from pagemesh.router.generation.request import StopReason, Usage
from pagemesh.router.openai.errors import error_body
from pagemesh.router.openai.sse import KEEPALIVE
from pagemesh.router.responses_api.events import EventWriter
from pagemesh.router.responses_api.items import Items, ItemStatus
from pagemesh.router.responses_api.response_object import ResponseObject


class ResponsesWriter:
    """Writes one response, as a whole or as events."""

    def __init__(self, response: ResponseObject, items: Items) -> None:
        self._response = response
        self._items = items
        self._events = EventWriter(items)
        self._answer = AnswerParts()
        self._has_begun = False
        self._is_full = False
        self._is_cut = False

    def whole(self, deltas: Iterable[ChatDelta], usage: Usage) -> dict[str, Any]:
        """The body of an answer that is not streamed."""
        for delta in deltas:
            self._note_end(delta)
            for _ in self._answer.push(delta):
                pass
        return self._ended(usage)

    def keepalive(self) -> bytes:
        """Frames that show that the request is alive while nothing else is known."""
        return self._begin() or KEEPALIVE

    def events(self, delta: ChatDelta) -> bytes:
        """Frames for what became known; may be empty."""
        self._note_end(delta)
        changes = list(self._answer.push(delta))
        return self._begin() + self._events.changes(changes, self._status)

    def end(self, usage: Usage) -> bytes:
        """The last frames of a stream."""
        response = self._ended(usage)
        return self._events.frame(f"response.{response['status']}", response=response)

    def failure(self, error: PagemeshError) -> bytes:
        """The last frames of a stream that cannot go on: the response as it is, and what clients raise."""
        response = self._response.build("failed", self._output("incomplete"), error=error)
        frames = self._begin() + self._events.frame("response.failed", response=response)
        body: dict[str, Any] = error_body(error)
        told = {name: body["error"][name] for name in ("code", "message", "param")}
        return frames + self._events.frame("error", **told, **body)

    @property
    def _status(self) -> Literal["completed", "incomplete"]:
        return "incomplete" if self._is_cut else "completed"

    def _note_end(self, delta: ChatDelta) -> None:
        self._is_full |= delta.stop_reason is StopReason.LENGTH
        self._is_cut |= delta.cuts_call or self._is_full

    def _begin(self) -> bytes:
        if self._has_begun:
            return b""
        self._has_begun = True
        response = self._response.build("in_progress")
        return self._events.frame("response.created", response=response) + self._events.frame(
            "response.in_progress", response=response
        )

    def _ended(self, usage: Usage) -> dict[str, Any]:
        output = self._output(self._status)
        return self._response.build(self._status, output, usage, is_full=self._is_full)

    def _output(self, last_status: ItemStatus) -> list[dict[str, Any]]:
        """All items; only the last one can be cut off."""
        parts = self._answer.parts
        return [
            self._items.whole(part, last_status if part is parts[-1] else "completed")
            for part in parts
        ]
