"""Sends HTTP answers through the transcoder: status by metadata, body as `HttpBody`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import structlog
from google.api.httpbody_pb2 import HttpBody
from opentelemetry import trace

from pagemesh.errors import InvalidRequestError, PagemeshError
from pagemesh.router.openai.errors import error_body, error_headers
from pagemesh.router.openai.sse import encode_json
from pagemesh.rpc.call_context import add_answer_metadata
from pagemesh.rpc.status import as_pagemesh_error, for_log
from pagemesh.telemetry.spans import fail

_log = structlog.get_logger(__name__)

ErrorBody = Callable[[PagemeshError], dict[str, Any]]
"""Makes an error object in a dialect's words."""

STATUS_KEY = "x-http-status"
"""Initial metadata that the gateway turns into the HTTP status."""

_JSON = "application/json"
_PIECE_BYTES = 1 << 20
_EVENTS = "text/event-stream; charset=utf-8"


def json_answer(value: Mapping[str, Any]) -> HttpBody:
    """A whole JSON answer."""
    return HttpBody(content_type=_JSON, data=encode_json(value))


def json_pieces(value: Mapping[str, Any]) -> list[HttpBody]:
    """A JSON answer that may be too long for one message."""
    data = encode_json(value)
    return [
        HttpBody(content_type=_JSON, data=data[start : start + _PIECE_BYTES])
        for start in range(0, len(data), _PIECE_BYTES)
    ]


def events(frames: bytes) -> HttpBody:
    """A piece of an event stream; the first one's content type decides how the answer is sent."""
    return HttpBody(content_type=_EVENTS, data=frames)


def status_answer(status: int, value: Mapping[str, Any], headers: Mapping[str, str]) -> HttpBody:
    """A whole JSON answer with a status other than 200; nothing may have been sent before."""
    add_answer_metadata(lambda: ((STATUS_KEY, str(status)), *headers.items()))
    return json_answer(value)


def error_answer(error: PagemeshError, body: ErrorBody = error_body) -> HttpBody:
    """An error object, OpenAI's or another dialect's, with its status; nothing may have been sent before."""
    return status_answer(error.http_status, body(error), error_headers(error))


def check_is_json(content_type: str) -> None:
    """Refuse bodies that say they are something else; none at all is taken for JSON."""
    kind = content_type.partition(";")[0].strip().lower()
    if kind not in ("", _JSON):
        raise InvalidRequestError(
            f"the content type is {kind!r}, but must be {_JSON}", param="content-type"
        )


def as_answerable(error: Exception) -> PagemeshError:
    """What a client is told about a failure; bugs are logged and told as a bare internal error.

    The present span is told, too: the call itself ends as if nothing had happened.
    """
    if isinstance(error, PagemeshError):
        _log.info("request refused", **for_log(error))
    else:
        _log.error("request failed", exc_info=error)
    mapped = as_pagemesh_error(error)
    fail(trace.get_current_span(), mapped)
    return mapped
