"""OpenAI's error object for every exception of pagemesh."""

from __future__ import annotations

import math
from typing import Any

from pagemesh.errors import (
    DeadlineError,
    OverloadedError,
    PagemeshError,
    PoisonRequestError,
    RateLimitError,
)

RETRY_AFTER_S = 1
"""What clients are told to wait after 429 and 503; queues and restarts move on within about that."""

_TYPES = {429: "rate_limit_error"}
_CODES = {
    "INVALID_REQUEST": None,
    "OVERLOADED": "rate_limit_exceeded",
    "DEADLINE_EXCEEDED": "timeout",
}


UNREACHABLE = "DEADLINE_UNREACHABLE"
"""Reason of a request that was refused because it could not be done in its time."""


def error_body(error: PagemeshError) -> dict[str, Any]:
    """The `{"error": …}` object."""
    server = "server_error" if error.http_status >= 500 else "invalid_request_error"
    return {
        "error": {
            "message": error.message,
            "type": _TYPES.get(error.http_status, server),
            "param": error.param,
            "code": _CODES.get(error.reason, error.reason.lower()),
        }
    }


def error_headers(error: PagemeshError) -> dict[str, str]:
    """Further HTTP headers of an answer that carries this error."""
    if error.http_status == 401:
        return {"www-authenticate": "Bearer"}
    is_too_large = isinstance(error, RateLimitError) and error.retry_after is None
    is_too_late = isinstance(error, DeadlineError) and error.reason == UNREACHABLE
    if is_too_large or is_too_late or isinstance(error, PoisonRequestError):
        # What the clients of OpenAI and Anthropic read before they try again by themselves.
        return {"x-should-retry": "false"}
    if isinstance(error, OverloadedError) and error.retry_after is not None:
        return {"retry-after": str(max(RETRY_AFTER_S, math.ceil(error.retry_after)))}
    if error.http_status in (429, 503):
        return {"retry-after": str(RETRY_AFTER_S)}
    return {}
