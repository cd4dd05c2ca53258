"""The answer to POST /v1/completions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pagemesh.router.generation.request import ChoiceDelta, StopReason, Usage
from pagemesh.router.openai.responses import CollectedChoice, usage_object
from pagemesh.router.openai.sse import data_frame


class CompletionResponder:
    """Writes completions; a chunk has the same form as the whole."""

    def __init__(self, request_id: str, created: int, model: str, *, include_usage: bool) -> None:
        self._head: dict[str, Any] = {
            "id": f"cmpl-{request_id}",
            "object": "text_completion",
            "created": created,
            "model": model,
            "system_fingerprint": None,
        }
        # A stream that ends with the usage has the field in every chunk.
        self._chunk_tail: dict[str, Any] = {"usage": None} if include_usage else {}

    def whole(self, choices: Sequence[CollectedChoice], usage: Usage) -> dict[str, Any]:
        """The body of an answer that is not streamed."""
        return {
            **self._head,
            "choices": [
                _choice(index, "".join(choice.text), choice.stop_reason)
                for index, choice in enumerate(choices)
            ],
            "usage": usage_object(usage),
        }

    def events(self, delta: ChoiceDelta) -> bytes:
        """The frame for what became known about a choice; empty when that is no text."""
        if not delta.text and delta.stop_reason is None:
            return b""
        choice = _choice(delta.index, delta.text, delta.stop_reason)
        return data_frame({**self._head, "choices": [choice], **self._chunk_tail})

    def usage_event(self, usage: Usage) -> bytes:
        """The frame with the token counts."""
        return data_frame({**self._head, "choices": [], "usage": usage_object(usage)})


def _choice(index: int, text: str, stop_reason: StopReason | None) -> dict[str, Any]:
    return {
        "index": index,
        "text": text,
        "logprobs": None,
        "finish_reason": stop_reason.value if stop_reason is not None else None,
    }
