"""The `Console` service: what people and their tools look at."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import aclosing
from importlib import metadata
from typing import Any

from google.api.httpbody_pb2 import HttpBody
from prometheus_client.exposition import CONTENT_TYPE_LATEST

from pagemesh.errors import OverloadedError, PagemeshError
from pagemesh.router.console.page import PageFiles
from pagemesh.router.console.state import MeshState
from pagemesh.router.generation.admission import Admission
from pagemesh.router.mesh_view import MeshView
from pagemesh.router.models import Models
from pagemesh.router.openai.tokenizing import tokenizer_info
from pagemesh.router.openapi.document import openapi_document
from pagemesh.router.servicers.gate import credentials_of
from pagemesh.router.servicers.http_answer import (
    STATUS_KEY,
    as_answerable,
    error_answer,
    events,
    json_answer,
    json_pieces,
    status_answer,
)
from pagemesh.router.servicers.read_call import AnyContext
from pagemesh.rpc.call_context import add_answer_metadata
from pagemesh.v1 import console_pb2, console_pb2_grpc

_NOT_KEPT = (("cache-control", "no-store"),)


class ConsoleServicer(console_pb2_grpc.ConsoleServicer):
    """Serves the routes beside the APIs."""

    def __init__(
        self, models: Models, mesh: MeshView, state: MeshState, admission: Admission
    ) -> None:
        self._models = models
        self._mesh = mesh
        self._state = state
        self._admission = admission
        self._files = PageFiles()

    async def Health(  # noqa: N802  # the name of the RPC
        self, request: console_pb2.ConsoleHealthRequest, context: AnyContext
    ) -> AsyncIterator[HttpBody]:
        """GET /health, GET and POST /ping"""
        health = self._mesh.health()
        if health["status"] == "ok":
            yield json_answer(health)
        else:
            yield status_answer(503, health, {})

    async def Load(  # noqa: N802  # the name of the RPC
        self, request: console_pb2.ConsoleLoadRequest, context: AnyContext
    ) -> AsyncIterator[HttpBody]:
        """GET /load"""
        yield json_answer({"server_load": self._admission.num_requests})

    async def TokenizerInfo(  # noqa: N802  # the name of the RPC
        self, request: console_pb2.ConsoleTokenizerInfoRequest, context: AnyContext
    ) -> AsyncIterator[HttpBody]:
        """GET /tokenizer_info"""
        try:
            model = (
                self._models.named(request.model).services[0].model
                if request.model
                else next(iter(self._models)).model
            )
        except PagemeshError as error:
            yield error_answer(error)
            return
        if not model.api.enable_tokenizer_info_endpoint:
            message = "the router does not run with --enable-tokenizer-info-endpoint"
            yield status_answer(404, _unknown(message), {})
            return
        yield json_answer(tokenizer_info(model))

    async def Ready(  # noqa: N802  # the name of the RPC
        self, request: console_pb2.ConsoleReadyRequest, context: AnyContext
    ) -> AsyncIterator[HttpBody]:
        """GET /ready"""
        missing = [
            service.model.name
            for service in self._models
            if service.workers.max_model_len() is None
        ]
        if not missing:
            yield json_answer({"status": "ok", "missing": []})
        else:
            body = {"status": "unavailable", "missing": missing}
            yield status_answer(503, body, {})

    async def Version(  # noqa: N802  # the name of the RPC
        self, request: console_pb2.ConsoleVersionRequest, context: AnyContext
    ) -> AsyncIterator[HttpBody]:
        """GET /version"""
        yield json_answer({"version": metadata.version("pagemesh")})

    async def OpenApi(  # noqa: N802  # the name of the RPC
        self, request: console_pb2.ConsoleOpenApiRequest, context: AnyContext
    ) -> AsyncIterator[HttpBody]:
        """GET /openapi.json"""
        for piece in json_pieces(openapi_document()):
            yield piece

    async def Metrics(  # noqa: N802  # the name of the RPC
        self, request: console_pb2.ConsoleMetricsRequest, context: AnyContext
    ) -> AsyncIterator[HttpBody]:
        """GET /metrics"""
        page = await self._mesh.pages.page(credentials_of(context.invocation_metadata() or ()))
        yield HttpBody(content_type=CONTENT_TYPE_LATEST, data=page)

    async def Page(  # noqa: N802  # the name of the RPC
        self, request: console_pb2.ConsolePageRequest, context: AnyContext
    ) -> AsyncIterator[HttpBody]:
        """GET / and GET /console/{asset}"""
        asset = self._files.find(request.asset)
        if asset is None:
            message = f"the page has no file {request.asset[:100]!r}"
            yield status_answer(404, _unknown(message), {})
            return
        given = [str(v) for k, v in context.invocation_metadata() or () if k == "if-none-match"]
        add_answer_metadata(lambda: asset.headers)
        if given and asset.is_known_to(",".join(given)):
            add_answer_metadata(lambda: ((STATUS_KEY, "304"),))
            yield HttpBody(content_type=asset.content_type)
            return
        yield HttpBody(content_type=asset.content_type, data=asset.data)

    async def Mesh(  # noqa: N802  # the name of the RPC
        self, request: console_pb2.ConsoleMeshRequest, context: AnyContext
    ) -> AsyncIterator[HttpBody]:
        """GET /mesh"""
        add_answer_metadata(lambda: _NOT_KEPT)
        for piece in json_pieces(self._state.snapshot()):
            yield piece

    async def MeshEvents(  # noqa: N802  # the name of the RPC
        self, request: console_pb2.ConsoleMeshEventsRequest, context: AnyContext
    ) -> AsyncIterator[HttpBody]:
        """GET /mesh/events"""
        try:
            add_answer_metadata(lambda: _NOT_KEPT)
            async with aclosing(self._state.watchers.frames()) as frames:
                async for frame in frames:
                    yield events(frame)
        except OverloadedError as error:
            yield error_answer(as_answerable(error))


def _unknown(message: str) -> dict[str, Any]:
    kind, code = "invalid_request_error", "unknown_url"
    return {"error": {"message": message, "type": kind, "param": None, "code": code}}
