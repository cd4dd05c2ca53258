"""Anthropic's error object for every exception of pagemesh."""

from __future__ import annotations

from typing import Any, Final

from pagemesh.errors import PagemeshError, ResponseNotFoundError

_TYPES: Final = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
    504: "timeout_error",
}


def error_body(error: PagemeshError, request_id: str) -> dict[str, Any]:
    """The whole object of an answer, and of a stream's last event."""
    fallback = "api_error" if error.http_status >= 500 else "invalid_request_error"
    told: dict[str, Any] = {
        "type": _TYPES.get(error.http_status, fallback),
        "message": error.message,
    }
    if isinstance(error, ResponseNotFoundError):
        # By which clients know that they have to send the whole conversation again.
        told["details"] = {"error_code": "thread_not_found"}
    return {"type": "error", "error": told, "request_id": request_id}
