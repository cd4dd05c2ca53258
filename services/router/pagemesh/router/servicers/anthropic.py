"""The `Anthropic` service: HTTP bodies in, HTTP bodies and event streams out."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

from google.api.httpbody_pb2 import HttpBody

from pagemesh.errors import PagemeshError
from pagemesh.router.anthropic.endpoint import MessagesEndpoint
from pagemesh.router.anthropic.errors import error_body
from pagemesh.router.generation.admission import Admission
from pagemesh.router.models import Models
from pagemesh.router.servicers.generation_call import GenerationCalls
from pagemesh.router.servicers.json_call import JsonCalls
from pagemesh.router.servicers.read_call import AnyContext
from pagemesh.rpc.call_context import add_answer_metadata, current_call
from pagemesh.v1 import anthropic_pb2_grpc

_REQUEST_ID_KEY = "request-id"
"""The header in which Anthropic's clients look for the request's name."""


class AnthropicServicer(anthropic_pb2_grpc.AnthropicServicer):
    """Serves Anthropic's routes; every error is answered with Anthropic's error object."""

    def __init__(
        self,
        models: Models,
        admission: Admission,
        request_timeout: float,
        *,
        explains_routes: bool,
    ) -> None:
        self._messages = MessagesEndpoint(models)
        self._json = JsonCalls(admission, request_timeout, _error_body)
        self._generations = GenerationCalls(
            admission, request_timeout, explains_routes=explains_routes, error_body=_error_body
        )

    def Messages(  # noqa: N802  # the name of the RPC
        self, request: HttpBody, context: AnyContext
    ) -> AsyncIterator[HttpBody]:
        """POST /v1/messages"""
        add_answer_metadata(_request_id)
        return self._generations.answer(request, context, self._messages.prepare)

    async def CountTokens(  # noqa: N802  # the name of the RPC
        self, request: HttpBody, context: AnyContext
    ) -> AsyncIterator[HttpBody]:
        """POST /v1/messages/count_tokens"""
        add_answer_metadata(_request_id)
        for body in await self._json.answer(request, self._messages.count_tokens):
            yield body


def _request_id() -> list[tuple[str, str]]:
    request_id = current_call().request_id
    return [(_REQUEST_ID_KEY, request_id)] if request_id else []


def _error_body(error: PagemeshError) -> dict[str, Any]:
    return error_body(error, current_call().request_id)
