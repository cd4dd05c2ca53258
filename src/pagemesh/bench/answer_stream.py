"""An answer's server-sent events, read into the record of its request."""

from __future__ import annotations

import json
from typing import Any, Final

from pagemesh.bench.record import Record

_DONE: Final = b"[DONE]"
_TEXT_FIELDS: Final = ("content", "reasoning_content", "reasoning")


class AnswerStream:
    """Reads OpenAI's events, however the network cuts them.

    A piece counts as tokens when it has text, or else when nothing says that it is the beginning or the end: some
    tokens have no text by themselves. A chat's first event, which tells the role alone, is none.
    """

    def __init__(self, record: Record) -> None:
        self._record = record
        self._rest = b""
        self._texts: list[str] = []

    def feed(self, data: bytes, now: float) -> None:
        """Bytes that came at this time. Raises ValueError for what is no event of this kind."""
        *lines, self._rest = (self._rest + data).split(b"\n")
        for line in lines:
            if line.startswith(b"data:"):
                payload = line[5:].strip()
                if payload == _DONE:
                    self._record.is_finished = self._record.end > 0
                elif payload:
                    self._read(json.loads(payload), now)

    def close(self) -> None:
        """Nothing more comes."""
        self._record.text = "".join(self._texts)

    def _read(self, event: Any, now: float) -> None:
        if not isinstance(event, dict):
            raise ValueError(f"an event is {str(event)[:80]!r}, but must be an object")
        record = self._record
        if error := event.get("error"):
            record.error = error_text(error)
        if usage := event.get("usage"):
            record.num_prompt_tokens = usage.get("prompt_tokens", record.num_prompt_tokens)
            record.num_output_tokens = usage.get("completion_tokens", record.num_output_tokens)
            details = usage.get("prompt_tokens_details") or {}
            record.num_cached_tokens = details.get("cached_tokens", record.num_cached_tokens)
        for choice in event.get("choices") or ():
            record.end = now
            if self._has_tokens(choice):
                record.piece_times.append(now)
            if choice.get("finish_reason"):
                record.is_finished = True

    def _has_tokens(self, choice: dict[str, Any]) -> bool:
        ends = bool(choice.get("finish_reason"))
        delta = choice.get("delta")
        if delta is None:
            text = choice.get("text") or ""
            self._texts.append(text)
            return bool(text) or not ends
        texts = [delta[name] for name in _TEXT_FIELDS if delta.get(name)]
        self._texts += texts
        is_beginning = "role" in delta and not self._record.piece_times
        return bool(texts or delta.get("tool_calls")) or not (ends or is_beginning)


def error_text(error: Any) -> str:
    """What an error object, or whatever stands in its place, says."""
    message = error.get("message") if isinstance(error, dict) else None
    return str(message or error)
