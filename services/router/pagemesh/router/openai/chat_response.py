"""The answer to POST /v1/chat/completions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pagemesh.errors import PagemeshError
from pagemesh.router.chat.delta import ChatDelta
from pagemesh.router.generation.request import Usage
from pagemesh.router.openai.answer_options import AnswerOptions
from pagemesh.router.openai.chunk_frames import ChunkFrames
from pagemesh.router.openai.errors import error_body
from pagemesh.router.openai.logprobs import chat_logprobs, prompt_logprobs
from pagemesh.router.openai.responses import stop_fields, usage_object, usage_so_far
from pagemesh.router.openai.sse import DONE, KEEPALIVE, data_frame
from pagemesh.router.parsers.interface import ToolCallDelta
from pagemesh.sampling.logprobs import TokenLogprobs


class ChatResponder:
    """Implements `ChatWriter`: writes chat completions and their chunks."""

    def __init__(
        self,
        request_id: str,
        created: int,
        model: str,
        options: AnswerOptions,
        *,
        prompt_token_ids: Sequence[int] = (),
        prompt_text: str | None = None,
        echo: str = "",
        must_call: bool = False,
    ) -> None:
        """`prompt_text` is told if there is one; `echo` is put in front of each choice's content.

        `must_call` says that the request left the model no choice but to call tools.
        """
        # As in vLLM: null where there might have been some.
        self._no_content = "" if must_call else None
        self._options = options
        self._num_prompt_tokens = len(prompt_token_ids)
        self._echo = echo
        self._head: dict[str, Any] = {
            "id": f"chatcmpl-{request_id}",
            "object": "chat.completion",
            "created": created,
            "model": model,
            "system_fingerprint": None,
        }
        self._chunk_head = {**self._head, "object": "chat.completion.chunk"}
        # Beside the choices of a whole answer, or of its first chunk.
        self._about_prompt: dict[str, Any] = {}
        if options.has_token_ids:
            self._about_prompt["prompt_token_ids"] = list(prompt_token_ids)
        if prompt_text is not None:
            self._about_prompt["prompt_text"] = prompt_text
        self._frames = ChunkFrames(
            self._chunk_head,
            # A stream that ends with the usage has the field in every chunk.
            {"usage": None} if options.include_usage else {},
            _choice(0, {"content": ChunkFrames.text_place()}),
        )
        self._is_plain = not (
            options.has_logprobs or options.has_token_ids or options.has_continuous_usage
        )
        # Tokens of each choice that has begun.
        self._num_tokens: dict[int, int] = {}

    def whole(self, deltas: Sequence[ChatDelta], usage: Usage) -> dict[str, Any]:
        """The body of an answer that is not streamed."""
        return {
            **self._head,
            "choices": [self._whole_choice(delta) for delta in deltas],
            "usage": usage_object(usage),
            "prompt_logprobs": self._prompt_logprobs(deltas[0]),
            "prompt_token_ids": None,
            **self._about_prompt,
        }

    def keepalive(self) -> bytes:
        """A comment."""
        return KEEPALIVE

    def events(self, delta: ChatDelta) -> bytes:
        """Frames for what became known about a choice; may be empty."""
        begin = self._begin(delta.index) if delta.index not in self._num_tokens else b""
        if self._is_plain and delta.stop_reason is None:
            if delta.reasoning or delta.tool_calls:
                return begin + self._frame(delta, _message(delta))
            return begin + self._frames.text(delta.index, delta.content) if delta.content else begin
        self._num_tokens[delta.index] += len(delta.token_ids)
        message = _message(delta)
        if self._options.has_token_ids and delta.token_ids and not message:
            # Tokens whose text is held back are told of at once.
            message = {"content": ""}
        frames = begin + (self._frame(delta, message) if message else b"")
        return frames if delta.stop_reason is None else frames + self._end_of_choice(delta)

    def end(self, usage: Usage) -> bytes:
        """The token counts, if they were asked for, and the mark of the end."""
        if not self._options.include_usage:
            return DONE
        counts = {**self._chunk_head, "choices": [], "usage": usage_object(usage)}
        return data_frame(counts) + DONE

    def failure(self, error: PagemeshError) -> bytes:
        """OpenAI's error object, which its clients raise."""
        return data_frame(error_body(error))

    def _begin(self, index: int) -> bytes:
        """The first frames of a choice: its role, and what is told of the prompt to the first of them."""
        more = {} if self._num_tokens else self._about_prompt
        self._num_tokens[index] = 0
        choice = _choice(index, {"role": "assistant", "content": ""})
        first = self._frames.frame(choice, {**self._usage(index), **more})
        return first + (self._frames.text(index, self._echo) if self._echo else b"")

    def _frame(self, delta: ChatDelta, message: dict[str, Any]) -> bytes:
        choice = _choice(delta.index, message)
        if self._options.has_logprobs and delta.content_logprobs:
            choice["logprobs"] = self._logprobs(delta.content_logprobs)
        if self._options.has_token_ids:
            choice["token_ids"] = delta.token_ids
        return self._frames.frame(choice, self._usage(delta.index))

    def _end_of_choice(self, delta: ChatDelta) -> bytes:
        choice = _choice(delta.index, {}) | stop_fields(delta)
        if self._options.has_token_ids:
            choice["token_ids"] = ()
        return self._frames.frame(choice, self._usage(delta.index))

    def _usage(self, index: int) -> dict[str, Any]:
        if self._options.has_continuous_usage:
            return {"usage": usage_so_far(self._num_prompt_tokens, self._num_tokens[index])}
        return {"usage": None} if self._options.include_usage else {}

    def _whole_choice(self, delta: ChatDelta) -> dict[str, Any]:
        content: str | None = self._echo + delta.content
        if not content and (delta.tool_calls or delta.reasoning):
            content = self._no_content
        message: dict[str, Any] = {
            "role": "assistant",
            "content": content,
            "refusal": None,
            "reasoning": delta.reasoning or None,
            "reasoning_content": delta.reasoning or None,
        }
        if delta.tool_calls:
            message["tool_calls"] = [_call(call) for call in delta.tool_calls]
        choice = {
            "index": delta.index,
            "message": message,
            "logprobs": self._logprobs(delta.content_logprobs)
            if self._options.has_logprobs
            else None,
            **stop_fields(delta),
        }
        return choice | {"token_ids": delta.token_ids if self._options.has_token_ids else None}

    def _logprobs(self, scores: Sequence[TokenLogprobs]) -> dict[str, Any]:
        return chat_logprobs(scores, self._options.tokens)

    def _prompt_logprobs(self, choice: ChatDelta) -> list[Any] | None:
        if not choice.prompt_logprobs:
            return None
        return prompt_logprobs(choice.prompt_logprobs, self._options.tokens)


def _choice(index: int, delta: dict[str, Any]) -> dict[str, Any]:
    return {"index": index, "delta": delta, "logprobs": None, "finish_reason": None}


def _message(delta: ChatDelta) -> dict[str, Any]:
    """The `delta` object; empty when there is nothing in it."""
    message: dict[str, Any] = {}
    if delta.content:
        message["content"] = delta.content
    if delta.reasoning:
        # vLLM's name, and the one that DeepSeek gave it and most clients read.
        message["reasoning"] = message["reasoning_content"] = delta.reasoning
    if delta.tool_calls:
        message["tool_calls"] = [
            {"index": call.index, **(_call(call) if call.call_id is not None else _rest(call))}
            for call in delta.tool_calls
        ]
    return message


def _call(call: ToolCallDelta) -> dict[str, Any]:
    function = {"name": call.name, "arguments": call.arguments}
    return {"id": call.call_id, "type": "function", "function": function}


def _rest(call: ToolCallDelta) -> dict[str, Any]:
    return {"function": {"arguments": call.arguments}}
