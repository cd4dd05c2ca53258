"""A call whose answer is one JSON object, made by an endpoint from the body."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from google.api.httpbody_pb2 import HttpBody

from pagemesh.router.call import Call
from pagemesh.router.generation.admission import Admission
from pagemesh.router.openai.errors import error_body
from pagemesh.router.servicers.http_answer import (
    ErrorBody,
    as_answerable,
    check_is_json,
    error_answer,
    json_pieces,
)
from pagemesh.router.servicers.read_call import read_call

Endpoint = Callable[[bytes, Call], Awaitable[dict[str, Any]]]
"""From a body to the answer's object; raises PagemeshErrors."""


class JsonCalls:
    """Runs such calls, each in a place of the router's."""

    def __init__(
        self, admission: Admission, request_timeout: float, error_body: ErrorBody = error_body
    ) -> None:
        """`error_body` has the dialect's words for what goes wrong."""
        self._admission = admission
        self._error_body = error_body
        self._request_timeout = request_timeout

    async def answer(self, request: HttpBody, endpoint: Endpoint) -> list[HttpBody]:
        """The pieces of the answer, or of the error object with its status."""
        try:
            with self._admission.place():
                check_is_json(request.content_type)
                call = read_call(self._request_timeout)
                return json_pieces(await endpoint(request.data, call))
        # RPC boundary: clients of HTTP must get a body, which the server's own boundary cannot send.
        except Exception as error:
            return [error_answer(as_answerable(error), self._error_body)]
