"""The answer to POST /v1/completions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pagemesh.errors import PagemeshError
from pagemesh.router.generation.request import ChoiceDelta, StopReason, Usage
from pagemesh.router.openai.errors import error_body
from pagemesh.router.openai.logprobs import TokenText, completion_logprobs, prompt_logprobs
from pagemesh.router.openai.responses import CollectedChoice, usage_object
from pagemesh.router.openai.sse import DONE, KEEPALIVE, data_frame
from pagemesh.sampling.logprobs import TokenLogprobs


class CompletionResponder:
    """Writes completions; a chunk has the same form as the whole."""

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
        # Characters of each choice's tokens so far.
        self._offsets: dict[int, int] = {}
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
                self._choice(index, "".join(choice.text), choice.stop_reason, choice.logprobs)
                | self._prompt_logprobs(choice)
                for index, choice in enumerate(choices)
            ],
            "usage": usage_object(usage),
        }

    def keepalive(self) -> bytes:
        """A comment."""
        return KEEPALIVE

    def events(self, delta: ChoiceDelta) -> bytes:
        """The frame for what became known about a choice; may be empty."""
        scores = delta.logprobs if self._has_logprobs else ()
        if not delta.text and not scores and delta.stop_reason is None:
            return b""
        choice = self._choice(delta.index, delta.text, delta.stop_reason, scores)
        return data_frame({**self._head, "choices": [choice], **self._chunk_tail})

    def end(self, usage: Usage) -> bytes:
        """The token counts, if they were asked for, and the mark of the end."""
        if not self._include_usage:
            return DONE
        counts = {**self._head, "choices": [], "usage": usage_object(usage)}
        return data_frame(counts) + DONE

    def failure(self, error: PagemeshError) -> bytes:
        """OpenAI's error object, which its clients raise."""
        return data_frame(error_body(error))

    def _prompt_logprobs(self, choice: CollectedChoice) -> dict[str, Any]:
        if not choice.prompt_logprobs:
            return {}
        return {"prompt_logprobs": prompt_logprobs(choice.prompt_logprobs, self._token_text)}

    def _choice(
        self,
        index: int,
        text: str,
        stop_reason: StopReason | None,
        scores: Sequence[TokenLogprobs],
    ) -> dict[str, Any]:
        logprobs = None
        if self._has_logprobs:
            offset = self._offsets.get(index, 0)
            logprobs = completion_logprobs(scores, self._token_text, offset)
            self._offsets[index] = offset + sum(map(len, logprobs["tokens"]))
        return {
            "index": index,
            "text": text,
            "logprobs": logprobs,
            "finish_reason": stop_reason.value if stop_reason is not None else None,
        }
