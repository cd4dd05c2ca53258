"""The message object: what was asked for, and what came of it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import pydantic_core

from pagemesh.router.anthropic.content import TOOL_ID_PREFIX
from pagemesh.router.chat.answer_parts import Part, PartKind
from pagemesh.router.generation.request import Usage
from pagemesh.router.parsers.tool_format import VLLM_ID_PREFIX

_ID_CHARS: Final = 24
"""As many as Anthropic's ids have."""


def message_object(
    request_id: str, model: str, content: Sequence[dict[str, Any]], usage: dict[str, Any]
) -> dict[str, Any]:
    """A message that has not ended."""
    return {
        "id": f"msg_{request_id}",
        "type": "message",
        "role": "assistant",
        "model": model,
        "content": list(content),
        "stop_reason": None,
        "stop_sequence": None,
        "usage": usage,
    }


def block(part: Part, *, shows_thinking: bool) -> dict[str, Any]:
    """A part as a block of content, as far as it is known."""
    match part.kind:
        case PartKind.TEXT:
            return {"type": "text", "text": part.text}
        case PartKind.REASONING:
            thinking = part.text if shows_thinking else ""
            # Thoughts are read as they are given: there is nothing to be signed.
            return {"type": "thinking", "thinking": thinking, "signature": ""}
        case PartKind.TOOL_CALL:
            return {
                "type": "tool_use",
                "id": TOOL_ID_PREFIX + part.call_id.removeprefix(VLLM_ID_PREFIX)[:_ID_CHARS],
                "name": part.name,
                "input": _arguments(part.text),
            }


def usage_object(usage: Usage) -> dict[str, Any]:
    """The token counts; tokens that came out of a cache are not among the input's."""
    return {
        "input_tokens": usage.num_prompt_tokens - usage.num_cached_tokens,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": usage.num_cached_tokens,
        "output_tokens": usage.num_completion_tokens,
    }


def _arguments(text: str) -> dict[str, Any]:
    """The object that a model wrote, as far as it got; empty when it wrote anything else."""
    try:
        value = pydantic_core.from_json(text, allow_partial="trailing-strings")
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}
