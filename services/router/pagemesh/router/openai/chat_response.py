"""The answer to POST /v1/chat/completions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pagemesh.errors import PagemeshError
from pagemesh.router.chat.delta import ChatDelta
from pagemesh.router.generation.request import Usage
from pagemesh.router.openai.errors import error_body
from pagemesh.router.openai.logprobs import TokenText, chat_logprobs, prompt_logprobs
from pagemesh.router.openai.responses import usage_object
from pagemesh.router.openai.sse import DONE, KEEPALIVE, data_frame
from pagemesh.sampling.logprobs import TokenLogprobs


class ChatResponder:
    """Writes chat completions and their chunks."""

    def __init__(
        self,
        request_id: str,
        created: int,
        model: str,
        *,
        include_usage: bool,
        token_text: TokenText,
        has_logprobs: bool,
    ) -> None:
        self._include_usage = include_usage
        self._token_text = token_text
        self._has_logprobs = has_logprobs
        self._head: dict[str, Any] = {
            "id": f"chatcmpl-{request_id}",
            "object": "chat.completion",
            "created": created,
            "model": model,
            "system_fingerprint": None,
        }
        self._chunk_head = {**self._head, "object": "chat.completion.chunk"}
        # A stream that ends with the usage has the field in every chunk.
        self._chunk_tail: dict[str, Any] = {"usage": None} if include_usage else {}
        self._begun: set[int] = set()

    def whole(self, deltas: Sequence[ChatDelta], usage: Usage) -> dict[str, Any]:
        """The body of an answer that is not streamed."""
        return {
            **self._head,
            "choices": [
                {
                    "index": choice.index,
                    "message": {
                        "role": "assistant",
                        "content": choice.content,
                        "refusal": None,
                    },
                    "logprobs": self._logprobs(choice.logprobs),
                    "finish_reason": choice.stop_reason.value if choice.stop_reason else None,
                }
                for choice in deltas
            ],
            "usage": usage_object(usage),
            **self._prompt_logprobs(deltas[0]),
        }

    def keepalive(self) -> bytes:
        """A comment."""
        return KEEPALIVE

    def events(self, delta: ChatDelta) -> bytes:
        """Frames for what became known about a choice; may be empty."""
        frames = b""
        if delta.index not in self._begun:
            self._begun.add(delta.index)
            frames += self._frame(delta.index, {"role": "assistant", "content": ""}, None)
        scores = delta.logprobs if self._has_logprobs else ()
        if delta.content or scores:
            frames += self._frame(delta.index, {"content": delta.content}, None, scores)
        if delta.stop_reason is not None:
            frames += self._frame(delta.index, {}, delta.stop_reason.value)
        return frames

    def end(self, usage: Usage) -> bytes:
        """The token counts, if they were asked for, and the mark of the end."""
        if not self._include_usage:
            return DONE
        counts = {**self._chunk_head, "choices": [], "usage": usage_object(usage)}
        return data_frame(counts) + DONE

    def failure(self, error: PagemeshError) -> bytes:
        """OpenAI's error object, which its clients raise."""
        return data_frame(error_body(error))

    def _prompt_logprobs(self, choice: ChatDelta) -> dict[str, Any]:
        if not choice.prompt_logprobs:
            return {}
        return {"prompt_logprobs": prompt_logprobs(choice.prompt_logprobs, self._token_text)}

    def _logprobs(self, scores: Sequence[TokenLogprobs]) -> dict[str, Any] | None:
        return chat_logprobs(scores, self._token_text) if self._has_logprobs else None

    def _frame(
        self,
        index: int,
        delta: dict[str, str],
        finish_reason: str | None,
        scores: Sequence[TokenLogprobs] = (),
    ) -> bytes:
        choice = {
            "index": index,
            "delta": delta,
            "logprobs": self._logprobs(scores) if scores else None,
            "finish_reason": finish_reason,
        }
        return data_frame({**self._chunk_head, "choices": [choice], **self._chunk_tail})
