"""The event stream of a response: every change of an answer as the events that tell of it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pagemesh.router.chat.answer_parts import Begun, Change, Ended, Grown, Part, PartKind
from pagemesh.router.openai.sse import named_frame
from pagemesh.router.responses_api.items import Items, ItemStatus
from pagemesh.router.responses_api.tools import custom_input
from pagemesh.sampling.logprobs import TokenLogprobs


class EventWriter:
    """Writes events and numbers them."""

    def __init__(self, items: Items) -> None:
        self._items = items
        self._next_number = 0

    def frame(self, kind: str, **fields: Any) -> bytes:
        """One event."""
        event = {"type": kind, "sequence_number": self._next_number, **fields}
        self._next_number += 1
        return named_frame(kind, event)

    def changes(self, changes: Sequence[Change], last_status: ItemStatus) -> bytes:
        """The events of some changes; `last_status` is that of a part that they end last."""
        frames = b""
        for index, change in enumerate(changes, start=1):
            status: ItemStatus = last_status if index == len(changes) else "completed"
            match change:
                case Begun(part):
                    frames += self._begun(part)
                case Grown(part, text, logprobs):
                    frames += self._grown(part, text, logprobs)
                case Ended(part):
                    frames += self._ended(part, status)
        return frames

    def _begun(self, part: Part) -> bytes:
        item = self._items.begun(part)
        frames = self.frame("response.output_item.added", output_index=part.index, item=item)
        if part.kind is not PartKind.TOOL_CALL:
            content = self._items.content(part.bare())
            frames += self._at_content(part, "response.content_part.added", {"part": content})
        return frames

    def _grown(self, part: Part, text: str, logprobs: Sequence[TokenLogprobs]) -> bytes:
        match part.kind:
            case PartKind.TOOL_CALL if self._items.is_custom(part):
                # Its text is known when its JSON is whole.
                return b""
            case PartKind.TOOL_CALL:
                kind = "response.function_call_arguments.delta"
                return self.frame(kind, **self._place(part), delta=text)
            case PartKind.REASONING:
                return self._at_content(part, "response.reasoning_text.delta", {"delta": text})
            case PartKind.TEXT:
                return self._at_content(
                    part,
                    "response.output_text.delta",
                    {"delta": text, "logprobs": self._items.scores(logprobs)},
                )

    def _ended(self, part: Part, status: ItemStatus) -> bytes:
        text = part.text
        match part.kind:
            case PartKind.TOOL_CALL if self._items.is_custom(part):
                kind, given = "response.custom_tool_call_input", custom_input(text)
                frames = self.frame(f"{kind}.delta", **self._place(part), delta=given)
                frames += self.frame(f"{kind}.done", **self._place(part), input=given)
            case PartKind.TOOL_CALL:
                kind = "response.function_call_arguments.done"
                frames = self.frame(kind, **self._place(part), arguments=text)
            case PartKind.REASONING:
                frames = self._at_content(part, "response.reasoning_text.done", {"text": text})
            case PartKind.TEXT:
                scores = self._items.scores(part.logprobs)
                frames = self._at_content(
                    part, "response.output_text.done", {"text": text, "logprobs": scores}
                )
        if part.kind is not PartKind.TOOL_CALL:
            content = self._items.content(part)
            frames += self._at_content(part, "response.content_part.done", {"part": content})
        item = self._items.whole(part, status)
        return frames + self.frame("response.output_item.done", output_index=part.index, item=item)

    def _at_content(self, part: Part, kind: str, fields: dict[str, Any]) -> bytes:
        # Every item has one piece of content.
        return self.frame(kind, **self._place(part), content_index=0, **fields)

    def _place(self, part: Part) -> dict[str, Any]:
        return {"item_id": self._items.item_id(part), "output_index": part.index}
