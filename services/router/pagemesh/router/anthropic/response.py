"""The answer to POST /v1/messages."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

from pagemesh.errors import PagemeshError
from pagemesh.router.anthropic.errors import error_body
from pagemesh.router.anthropic.message_object import block, message_object, usage_object
from pagemesh.router.chat.answer_parts import (
    AnswerParts,
    Begun,
    Change,
    Ended,
    Grown,
    PartKind,
)
from pagemesh.router.chat.delta import ChatDelta
from pagemesh.router.generation.request import StopReason, Usage
from pagemesh.router.openai.sse import named_frame

_DELTAS: Final = {
    PartKind.TEXT: ("text_delta", "text"),
    PartKind.REASONING: ("thinking_delta", "thinking"),
    PartKind.TOOL_CALL: ("input_json_delta", "partial_json"),
}
"""Type and field of what is added to a block."""


class MessageWriter:
    """Writes one message, as a whole or as events."""

    def __init__(
        self, request_id: str, model: str, num_prompt_tokens: int, *, shows_thinking: bool
    ) -> None:
        self._request_id = request_id
        self._model = model
        self._num_prompt_tokens = num_prompt_tokens
        self._shows_thinking = shows_thinking
        self._answer = AnswerParts()
        self._has_begun = False
        self._last: ChatDelta | None = None

    def whole(self, deltas: Iterable[ChatDelta], usage: Usage) -> dict[str, Any]:
        """The body of an answer that is not streamed."""
        for delta in deltas:
            self._last = delta
            for _ in self._answer.push(delta):
                pass
        content = [block(p, shows_thinking=self._shows_thinking) for p in self._answer.parts]
        message = message_object(self._request_id, self._model, content, usage_object(usage))
        return message | self._stop()

    def keepalive(self) -> bytes:
        """Frames that show that the request is alive while nothing else is known."""
        return self._begin() + _frame("ping")

    def events(self, delta: ChatDelta) -> bytes:
        """Frames for what became known; may be empty."""
        self._last = delta
        return self._begin() + b"".join(map(self._change, self._answer.push(delta)))

    def end(self, usage: Usage) -> bytes:
        """The last frames of a stream."""
        counts = _frame("message_delta", delta=self._stop(), usage=usage_object(usage))
        return counts + _frame("message_stop")

    def failure(self, error: PagemeshError) -> bytes:
        """Anthropic's error object, which its clients raise."""
        return named_frame("error", error_body(error, self._request_id))

    def _begin(self) -> bytes:
        if self._has_begun:
            return b""
        self._has_begun = True
        # What came out of a cache is told at the end.
        usage = usage_object(Usage(self._num_prompt_tokens, 0, 0))
        message = message_object(self._request_id, self._model, (), usage)
        return _frame("message_start", message=message)

    def _change(self, change: Change) -> bytes:
        match change:
            case Begun(part):
                content = block(part.bare(), shows_thinking=self._shows_thinking)
                return _frame("content_block_start", index=part.index, content_block=content)
            case Grown(part, text, _):
                if not text or (part.kind is PartKind.REASONING and not self._shows_thinking):
                    return b""
                kind, field = _DELTAS[part.kind]
                delta = {"type": kind, field: text}
                return _frame("content_block_delta", index=part.index, delta=delta)
            case Ended(part):
                return _frame("content_block_stop", index=part.index)

    def _stop(self) -> dict[str, Any]:
        last, string = self._last, None
        if last is not None and last.stop_reason is StopReason.LENGTH:
            reason = "max_tokens"
        elif last is not None and last.stop_string is not None:
            reason, string = "stop_sequence", last.stop_string
        elif last is not None and last.cuts_call:
            reason = "end_turn"
        elif any(part.kind is PartKind.TOOL_CALL for part in self._answer.parts):
            reason = "tool_use"
        else:
            reason = "end_turn"
        return {"stop_reason": reason, "stop_sequence": string}


def _frame(kind: str, **fields: Any) -> bytes:
    return named_frame(kind, {"type": kind, **fields})
