"""The `Console` service: what people and their tools look at."""

from __future__ import annotations

from collections.abc import AsyncIterator
from importlib import metadata

from google.api.httpbody_pb2 import HttpBody

from pagemesh.router.mesh_view import MeshView
from pagemesh.router.models import Models
from pagemesh.router.servicers.http_answer import json_answer, status_answer
from pagemesh.router.servicers.read_call import AnyContext
from pagemesh.v1 import console_pb2, console_pb2_grpc


class ConsoleServicer(console_pb2_grpc.ConsoleServicer):
    """Serves the routes beside the APIs."""

    def __init__(self, models: Models, mesh: MeshView) -> None:
        self._models = models
        self._mesh = mesh

    async def Health(  # noqa: N802  # the name of the RPC
        self, request: console_pb2.ConsoleHealthRequest, context: AnyContext
    ) -> AsyncIterator[HttpBody]:
        """GET /health"""
        health = self._mesh.health()
        if health["status"] == "ok":
            yield json_answer(health)
        else:
            yield await status_answer(context, 503, health, {})

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
            yield await status_answer(context, 503, body, {})

    async def Version(  # noqa: N802  # the name of the RPC
        self, request: console_pb2.ConsoleVersionRequest, context: AnyContext
    ) -> AsyncIterator[HttpBody]:
        """GET /version"""
        yield json_answer({"version": metadata.version("pagemesh")})

    async def Metrics(  # noqa: N802  # the name of the RPC
        self, request: console_pb2.ConsoleMetricsRequest, context: AnyContext
    ) -> AsyncIterator[HttpBody]:
        """GET /metrics"""
        content_type, text = self._mesh.metrics_page()
        yield HttpBody(content_type=content_type, data=text)
