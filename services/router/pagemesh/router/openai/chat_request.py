"""The body of POST /v1/chat/completions."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import pydantic
from pydantic import Field

from pagemesh.errors import InvalidRequestError, UnsupportedError
from pagemesh.router.openai.fields import RequestFields, parse_object, validate
from pagemesh.router.openai.unsupported import refuse_foreign, refuse_unsupported
from pagemesh.sampling.params import MAX_LOGPROBS

MAX_MESSAGES = 16_384
"""More than fit into any context; megabytes of empty ones would keep the event loop busy for seconds."""

_UNSUPPORTED_ROLES = ("tool", "function")
_PART_TYPES = ("image_url", "input_audio", "audio_url", "video_url", "file", "refusal")


class TextPart(pydantic.BaseModel):
    """A piece of a message's content."""

    model_config = pydantic.ConfigDict(strict=True)

    type: Literal["text"]
    text: str


class Message(pydantic.BaseModel):
    """One message."""

    model_config = pydantic.ConfigDict(strict=True)

    role: Literal["system", "developer", "user", "assistant"]
    content: str | Annotated[list[TextPart], Field(min_length=1)]
    name: str | None = None

    def for_template(self) -> dict[str, str]:
        """The message as chat templates know it: text parts are joined by line breaks, as in vLLM."""
        text = self.content
        if not isinstance(text, str):
            text = "\n".join(part.text for part in text)
        # "developer" is OpenAI's newer name of the role that templates know as "system".
        role = "system" if self.role == "developer" else self.role
        message = {"role": role, "content": text}
        if self.name is not None:
            message["name"] = self.name
        return message


class ChatRequest(RequestFields):
    """A valid request for the next message of a conversation."""

    messages: Annotated[list[Message], Field(min_length=1, max_length=MAX_MESSAGES)]
    max_completion_tokens: Annotated[int, Field(ge=1, le=2**31 - 1)] | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=MAX_LOGPROBS)] | None = None

    @property
    def num_logprobs(self) -> int | None:
        """Likeliest tokens that are named beside each token of an answer; None without any logprobs."""
        return (self.top_logprobs or 0) if self.logprobs else None

    @property
    def token_limit(self) -> tuple[str, int | None]:
        """Name and value of the field that limits the answer; the newer name wins."""
        if self.max_completion_tokens is not None:
            return "max_completion_tokens", self.max_completion_tokens
        return "max_tokens", self.max_tokens


def parse_chat_request(body: bytes) -> ChatRequest:
    """Read and check a body; raises InvalidRequestError or UnsupportedError naming the field."""
    return read_chat_request(parse_object(body))


def read_chat_request(raw: dict[str, Any]) -> ChatRequest:
    """Check a body that is read already, or that another dialect made of its own; raises the same."""
    refuse_unsupported(raw)
    refuse_foreign(raw, "best_of")
    _refuse_unsupported_messages(raw.get("messages"))
    fields = validate(ChatRequest, raw)
    if fields.top_logprobs and not fields.logprobs:
        raise InvalidRequestError(
            "top_logprobs can only be given when logprobs is true", param="top_logprobs"
        )
    return fields


def _refuse_unsupported_messages(messages: Any) -> None:
    """Name what is valid for OpenAI but cannot be done here; everything else is left to `validate`."""
    if not isinstance(messages, list) or len(messages) > MAX_MESSAGES:
        return
    for index, message in enumerate(messages):
        if not isinstance(message, dict):
            continue
        where = f"messages[{index}]"
        if message.get("role") in _UNSUPPORTED_ROLES:
            raise UnsupportedError(
                f'{where}.role is "{message["role"]}": tools are not supported',
                param=f"{where}.role",
            )
        for name in ("tool_calls", "function_call", "audio"):
            if message.get(name):
                raise UnsupportedError(f"{where}.{name} is not supported", param=f"{where}.{name}")
        parts = message.get("content")
        for position, part in enumerate(parts if isinstance(parts, list) else ()):
            if isinstance(part, dict) and part.get("type") in _PART_TYPES:
                param = f"{where}.content[{position}].type"
                raise UnsupportedError(
                    f'{param} is "{part["type"]}", but the model only reads text', param=param
                )
