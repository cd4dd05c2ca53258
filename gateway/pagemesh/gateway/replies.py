"""Bodies of the answers that Envoy gives itself: OpenAI's error object, or Anthropic's on its paths."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from pagemesh.config import HttpLimitsConfig
from pagemesh.gateway.names import ANTHROPIC_PREFIX


class Reply(NamedTuple):
    """The error object of one HTTP status."""

    status: int
    message: str
    """Envoy's command operators such as %REQ(:METHOD)% are filled in."""

    type: str
    anthropic_type: str
    code: str | None = None
    headers: Mapping[str, str] = {}
    """Headers of the answer beside those of all answers."""


# The transcoder has made a POST of what it knows, also where no route leads on.
_METHOD = "%REQ(X-ENVOY-ORIGINAL-METHOD?:METHOD)%"

_INVALID = ("invalid_request_error", "invalid_request_error")
_SERVER = ("server_error", "api_error")

_FALLBACK = Reply(0, "The gateway could not handle the request: %LOCAL_REPLY_BODY%", *_SERVER)


_NO_HOST = Reply(
    400, "The request has no header host, or :authority, which says to whom it is sent.", *_INVALID
)

_RETRY_SOON = {"retry-after": "1"}

_FIXED = (
    Reply(400, "The request is malformed: %LOCAL_REPLY_BODY%", *_INVALID),
    Reply(
        401,
        "No API key was given. Send one in the header authorization, as Bearer KEY, or in x-api-key.",
        "invalid_request_error",
        "authentication_error",
        "invalid_api_key",
        {"www-authenticate": "Bearer"},
    ),
    Reply(
        404,
        f"Unknown route: {_METHOD} %PATH(NQ)%",
        "invalid_request_error",
        "not_found_error",
        "unknown_url",
    ),
    Reply(405, f"{_METHOD} is not allowed on %PATH(NQ)%", *_INVALID, "method_not_allowed"),
    Reply(
        415,
        "The request's body is encoded as %REQ(CONTENT-ENCODING)%; only gzip is understood.",
        *_INVALID,
        "unsupported_content_encoding",
    ),
    Reply(
        429,
        "Too many requests.",
        "rate_limit_error",
        "rate_limit_error",
        "rate_limit_exceeded",
        _RETRY_SOON,
    ),
    Reply(
        503,
        "No router can serve the request right now.",
        *_SERVER,
        "unavailable",
        _RETRY_SOON,
    ),
    Reply(504, "The request took too long.", "server_error", "timeout_error", "timeout"),
)


def headers_timeout(limits: HttpLimitsConfig) -> float:
    """Seconds for a request's headers, which nobody needs long for."""
    return min(10.0, limits.body_timeout)


def _of_limits(limits: HttpLimitsConfig) -> tuple[Reply, ...]:
    """What names the limit that the request has reached."""
    late = (
        f"The request did not arrive in time: its headers within {headers_timeout(limits):g} s, "
        f"all of it within {limits.body_timeout:g} s."
    )
    large = f"The request's body is larger than {limits.max_body_size} MiB."
    long = f"The request's headers are larger than {limits.max_header_size} KiB, or too many."
    return (
        Reply(408, late, *_INVALID, "request_timeout"),
        Reply(413, large, "invalid_request_error", "request_too_large", "request_too_large"),
        Reply(431, long, *_INVALID, "headers_too_large"),
    )


def local_reply_config(limits: HttpLimitsConfig) -> dict[str, Any]:
    """Envoy's `LocalReplyConfig`, of whose mappers the first that matches is taken."""
    mappers = [_native_mapper(), _empty_mapper()]
    no_host = _header_filter(":authority", present_match=False)
    mappers.append(_mapper(_NO_HOST, _all_of(_status_filter(400), no_host), _openai_body(_NO_HOST)))
    for reply in (*_FIXED, *_of_limits(limits)):
        status = _status_filter(reply.status)
        mappers.append(_mapper(reply, _all_of(status, _anthropic_path()), _anthropic_body(reply)))
        mappers.append(_mapper(reply, status, _openai_body(reply)))
    mappers.append({"filter": _anthropic_path(), **_json(_anthropic_body(_FALLBACK))})
    return {"mappers": mappers, "body_format": {"json_format": _openai_body(_FALLBACK)}}


def _native_mapper() -> dict[str, Any]:
    """gRPC requests keep Envoy's own text."""
    return {
        "filter": _all_of(
            _header_filter("content-type", string_match={"prefix": "application/grpc"}),
            # The transcoder has made every request gRPC by now, but keeps its path.
            _header_filter("x-envoy-original-path", present_match=False),
        ),
        "body_format_override": {"text_format_source": {"inline_string": "%LOCAL_REPLY_BODY%"}},
    }


def _empty_mapper() -> dict[str, Any]:
    """The answer to OPTIONS has no body."""
    empty = {"body_format_override": {"text_format_source": {"inline_string": ""}}}
    return {"filter": _status_filter(204), **empty}


def _mapper(reply: Reply, matching: dict[str, Any], body: dict[str, Any]) -> dict[str, Any]:
    mapper = {"filter": matching, **_json(body)}
    if reply.headers:
        mapper["headers_to_add"] = [
            {
                "header": {"key": key, "value": value},
                "append_action": "OVERWRITE_IF_EXISTS_OR_ADD",
            }
            for key, value in reply.headers.items()
        ]
    return mapper


def _json(body: dict[str, Any]) -> dict[str, Any]:
    return {"body_format_override": {"json_format": body}}


def _anthropic_path() -> dict[str, Any]:
    begins = {"prefix": ANTHROPIC_PREFIX}
    names = (":path", "x-envoy-original-path")
    filters = [_header_filter(name, string_match=begins) for name in names]
    return {"or_filter": {"filters": filters}}


def _all_of(*filters: dict[str, Any]) -> dict[str, Any]:
    return {"and_filter": {"filters": list(filters)}}


def _header_filter(name: str, **match: object) -> dict[str, Any]:
    return {"header_filter": {"header": {"name": name, **match}}}


def _status_filter(status: int) -> dict[str, Any]:
    value = {"default_value": status, "runtime_key": f"local_reply.{status}"}
    return {"status_code_filter": {"comparison": {"op": "EQ", "value": value}}}


def _openai_body(reply: Reply) -> dict[str, Any]:
    error = {"message": reply.message, "type": reply.type, "param": None, "code": reply.code}
    return {"error": error}


def _anthropic_body(reply: Reply) -> dict[str, Any]:
    return {
        "type": "error",
        "error": {"type": reply.anthropic_type, "message": reply.message},
        "request_id": "%REQ(X-REQUEST-ID)%",
    }
