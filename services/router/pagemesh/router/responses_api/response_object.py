"""The response object: what was asked for, and what came of it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

from pagemesh.errors import PagemeshError
from pagemesh.router.generation.request import Usage
from pagemesh.router.responses_api.request import ResponsesRequest
from pagemesh.router.responses_api.tools import Tool

Status = Literal["in_progress", "completed", "incomplete", "failed"]


class ResponseObject:
    """Makes the object of one response at any moment."""

    def __init__(
        self,
        request_id: str,
        created: int,
        model: str,
        fields: ResponsesRequest,
        tools: Sequence[Tool],
        *,
        temperature: float,
        top_p: float,
    ) -> None:
        """`temperature` and `top_p` are those in use, the request's own or the model's."""
        reasoning = fields.reasoning.model_dump(exclude_none=True) if fields.reasoning else {}
        self._head: dict[str, Any] = {
            "id": f"resp_{request_id}",
            "object": "response",
            "created_at": created,
            "background": False,
            "store": False,
            "model": model,
            "instructions": fields.instructions,
            "max_output_tokens": fields.max_output_tokens,
            "max_tool_calls": fields.max_tool_calls,
            "metadata": fields.metadata or {},
            "parallel_tool_calls": fields.parallel_tool_calls is not False,
            "previous_response_id": None,
            "prompt_cache_key": fields.prompt_cache_key,
            "reasoning": {"effort": None, "summary": None, **reasoning},
            "safety_identifier": fields.safety_identifier,
            "service_tier": "default",
            "temperature": temperature,
            "text": _text(fields),
            "tool_choice": fields.tool_choice or "auto",
            "tools": [tool.model_dump() for tool in tools],
            "top_logprobs": fields.top_logprobs or 0,
            "top_p": top_p,
            "truncation": fields.truncation or "disabled",
            "user": fields.user,
        }

    def build(
        self,
        status: Status,
        output: Sequence[dict[str, Any]] = (),
        usage: Usage | None = None,
        error: PagemeshError | None = None,
        *,
        is_full: bool = False,
    ) -> dict[str, Any]:
        """The object with what is known; it `is_full` when no more tokens were allowed."""
        return {
            **self._head,
            "status": status,
            "error": _error(error) if error is not None else None,
            "incomplete_details": {"reason": "max_output_tokens"} if is_full else None,
            "output": list(output),
            "usage": _usage(usage) if usage is not None else None,
        }


def _text(fields: ResponsesRequest) -> dict[str, Any]:
    form: dict[str, Any] = {"type": "text"}
    if fields.text is not None and fields.text.format is not None:
        form = fields.text.format.model_dump(by_alias=True, exclude_none=True)
    verbosity = fields.text.verbosity if fields.text is not None else None
    return {"format": form, "verbosity": verbosity or "medium"}


def _error(error: PagemeshError) -> dict[str, Any]:
    code = "rate_limit_exceeded" if error.http_status == 429 else "server_error"
    return {"code": code, "message": error.message}


def _usage(usage: Usage) -> dict[str, Any]:
    return {
        "input_tokens": usage.num_prompt_tokens,
        "input_tokens_details": {
            "cached_tokens": usage.num_cached_tokens,
            # Nobody is charged for what a prompt leaves in the caches.
            "cache_write_tokens": 0,
        },
        "output_tokens": usage.num_completion_tokens,
        "output_tokens_details": {"reasoning_tokens": usage.num_reasoning_tokens or 0},
        "total_tokens": usage.num_prompt_tokens + usage.num_completion_tokens,
    }
