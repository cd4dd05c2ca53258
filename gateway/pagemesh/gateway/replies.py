"""Bodies of the answers that Envoy gives itself: OpenAI's error object instead of plain text."""

from __future__ import annotations

from typing import Any, NamedTuple


class Reply(NamedTuple):
    """The error object of one HTTP status."""

    status: int
    message: str
    """Envoy's command operators such as %REQ(:METHOD)% are filled in."""

    type: str
    code: str | None = None
    retry_after: int | None = None
    """Seconds until another try makes sense."""


REPLIES = (
    Reply(400, "The request is malformed: %LOCAL_REPLY_BODY%", "invalid_request_error"),
    Reply(
        404,
        "Unknown route: %REQ(:METHOD)% %PATH(NQ)%",
        "invalid_request_error",
        "unknown_url",
    ),
    Reply(
        405,
        "%REQ(:METHOD)% is not allowed on %PATH(NQ)%",
        "invalid_request_error",
        "method_not_allowed",
    ),
    Reply(413, "The request's body is too large.", "invalid_request_error", "request_too_large"),
    Reply(429, "Too many requests.", "rate_limit_error", "rate_limit_exceeded", 1),
    Reply(431, "The request's headers are too large.", "invalid_request_error"),
    Reply(503, "No router can serve the request right now.", "server_error", "unavailable", 1),
    Reply(504, "The request took too long.", "server_error", "timeout"),
)

_FALLBACK = "The gateway could not handle the request: %LOCAL_REPLY_BODY%"


def local_reply_config() -> dict[str, Any]:
    """Envoy's `LocalReplyConfig` with one mapper per reply; gRPC requests keep Envoy's own text."""
    grpc = {
        "filter": {
            "and_filter": {
                "filters": [
                    _header_filter("content-type", string_match={"prefix": "application/grpc"}),
                    # The transcoder has made every request gRPC by now, but keeps its path.
                    _header_filter("x-envoy-original-path", present_match=False),
                ]
            }
        },
        "body_format_override": {"text_format_source": {"inline_string": "%LOCAL_REPLY_BODY%"}},
    }
    fallback = Reply(0, _FALLBACK, "server_error")
    return {
        "mappers": [grpc, *(_mapper(reply) for reply in REPLIES)],
        "body_format": {"json_format": _body(fallback)},
    }


def _header_filter(name: str, **match: object) -> dict[str, Any]:
    return {"header_filter": {"header": {"name": name, **match}}}


def _mapper(reply: Reply) -> dict[str, Any]:
    comparison = {
        "op": "EQ",
        "value": {"default_value": reply.status, "runtime_key": f"local_reply.{reply.status}"},
    }
    mapper: dict[str, Any] = {
        "filter": {"status_code_filter": {"comparison": comparison}},
        "body_format_override": {"json_format": _body(reply)},
    }
    if reply.retry_after is not None:
        header = {"key": "retry-after", "value": str(reply.retry_after)}
        mapper["headers_to_add"] = [
            {"header": header, "append_action": "OVERWRITE_IF_EXISTS_OR_ADD"}
        ]
    return mapper


def _body(reply: Reply) -> dict[str, Any]:
    return {
        "error": {
            "message": reply.message,
            "type": reply.type,
            "param": None,
            "code": reply.code,
        }
    }
