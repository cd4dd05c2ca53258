"""The one place where calls are let in: behind it, every call has a tenant."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable
from typing import Any, Final, TypeAlias

import grpc
from google.api.httpbody_pb2 import HttpBody

from pagemesh.errors import PagemeshError, UnauthenticatedError
from pagemesh.router.anthropic import errors as anthropic_errors
from pagemesh.router.openai.errors import error_body
from pagemesh.router.servicers.http_answer import ErrorBody, error_answer
from pagemesh.router.servicers.read_call import AnyContext
from pagemesh.router.tenants.caller import bind_caller
from pagemesh.router.tenants.tenants import Tenants
from pagemesh.rpc.call_context import add_answer_metadata, current_call
from pagemesh.rpc.status import abort
from pagemesh.telemetry.logs import bind_tenant
from pagemesh.telemetry.metrics import Metrics
from pagemesh.telemetry.metrics.admission import REQUESTS_REFUSED

_OPEN_PREFIX: Final = "/grpc.health."
_METRICS_METHODS: Final = frozenset(
    {"/pagemesh.v1.Console/Metrics", "/pagemesh.v1.Process/Metrics"}
)
OPEN_METHODS: Final = frozenset(
    f"/pagemesh.v1.Console/{name}" for name in ("Health", "Ready", "Version", "OpenApi", "Page")
)
"""Say nothing that needs a key: whether the mesh is well, what routes there are, a page that asks for the key."""


def _anthropic_error_body(error: PagemeshError) -> dict[str, Any]:
    return anthropic_errors.error_body(error, current_call().request_id)


_ERROR_BODIES: Final[dict[str, ErrorBody]] = {
    "pagemesh.v1.OpenAI": error_body,
    "pagemesh.v1.Console": error_body,
    "pagemesh.v1.Anthropic": _anthropic_error_body,
}
"""Of the services whose answers are HTTP bodies, also those that refuse."""

_Handler: TypeAlias = "grpc.RpcMethodHandler[Any, Any]"


class Gate(grpc.aio.ServerInterceptor):
    """Lets calls with a key in, and all where no keys are asked for. Stands behind the server's boundary."""

    def __init__(self, tenants: Tenants, metrics: Metrics) -> None:
        self._tenants = tenants
        self._open = OPEN_METHODS | (_METRICS_METHODS if tenants.metrics_are_open else frozenset())
        self._refused = metrics.counter(REQUESTS_REFUSED).labels("key")

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[_Handler | None]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> _Handler | None:
        """The handler of a call that may be made; of any other, one that refuses it."""
        method = handler_call_details.method
        if method.startswith(_OPEN_PREFIX) or method in self._open:
            return await continuation(handler_call_details)
        try:
            caller = self._tenants.caller(read_key(handler_call_details.invocation_metadata or ()))
        except UnauthenticatedError as error:
            self._refused.inc()
            return _refusing(error, _ERROR_BODIES.get(method.split("/")[1]))
        bind_caller(caller)
        bind_tenant(caller.tenant.name)
        add_answer_metadata(caller.headers)
        return await continuation(handler_call_details)


def credentials_of(metadata: Iterable[tuple[str, str | bytes]]) -> list[tuple[str, str]]:
    """What of a call's metadata says who calls."""
    return [(key, str(value)) for key, value in metadata if key in ("authorization", "x-api-key")]


def read_key(metadata: Iterable[tuple[str, str | bytes]]) -> str | None:
    """The key that a call came with: as OpenAI's clients send it, or else as Anthropic's do."""
    given = dict(credentials_of(metadata))
    scheme, _, key = given.get("authorization", "").partition(" ")
    if scheme.lower() == "bearer" and key.strip():
        return key.strip()
    return given.get("x-api-key")


def _refusing(error: UnauthenticatedError, body: ErrorBody | None) -> _Handler:
    # Both sides as streams: such a handler answers without waiting for a request message first.
    if body is None:

        async def refuse(request: object, context: AnyContext) -> None:
            await abort(context, error)

        return grpc.stream_stream_rpc_method_handler(refuse)

    async def answer(request: object, context: AnyContext) -> AsyncGenerator[HttpBody]:
        yield error_answer(error, body)

    return grpc.stream_stream_rpc_method_handler(
        answer, response_serializer=HttpBody.SerializeToString
    )
