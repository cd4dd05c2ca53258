"""The `OpenAI` service: HTTP bodies in, HTTP bodies and event streams out."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import aclosing

from google.api.httpbody_pb2 import HttpBody

from pagemesh.errors import PagemeshError
from pagemesh.router.call import Call
from pagemesh.router.generation.admission import Admission
from pagemesh.router.mesh_view import MeshView
from pagemesh.router.models import Models
from pagemesh.router.openai.embeddings import EmbeddingEndpoint
from pagemesh.router.openai.endpoints import Endpoints, Job
from pagemesh.router.openai.scoring import ScoringEndpoint
from pagemesh.router.openai.tokenizing import TokenizingEndpoint
from pagemesh.router.servicers.explain import Explainer
from pagemesh.router.servicers.generation_answer import collect, stream
from pagemesh.router.servicers.http_answer import (
    as_answerable,
    check_is_json,
    error_answer,
    events,
    json_answer,
)
from pagemesh.router.servicers.json_call import JsonCalls
from pagemesh.router.servicers.read_call import AnyContext, read_call
from pagemesh.v1 import openai_pb2, openai_pb2_grpc

_Prepare = Callable[[bytes, Call], Awaitable[Job]]


class OpenAIServicer(openai_pb2_grpc.OpenAIServicer):
    """Serves OpenAI's routes; every error is answered with OpenAI's error object."""

    def __init__(
        self,
        models: Models,
        admission: Admission,
        mesh: MeshView,
        request_timeout: float,
        *,
        explains_routes: bool,
    ) -> None:
        self._models = models
        self._endpoints = Endpoints(models)
        self._embeddings = EmbeddingEndpoint(models)
        self._scoring = ScoringEndpoint(models)
        self._tokenizing = TokenizingEndpoint(models)
        self._json = JsonCalls(admission, request_timeout)
        self._admission = admission
        self._mesh = mesh
        self._explainer = Explainer(is_allowed=explains_routes)
        self._request_timeout = request_timeout

    async def ChatCompletions(  # noqa: N802  # the name of the RPC
        self, request: HttpBody, context: AnyContext
    ) -> AsyncIterator[HttpBody]:
        """POST /v1/chat/completions"""
        async with aclosing(self._answer(request, context, self._endpoints.chat)) as bodies:
            async for body in bodies:
                yield body

    async def Completions(  # noqa: N802  # the name of the RPC
        self, request: HttpBody, context: AnyContext
    ) -> AsyncIterator[HttpBody]:
        """POST /v1/completions"""
        async with aclosing(self._answer(request, context, self._endpoints.completion)) as bodies:
            async for body in bodies:
                yield body

    async def Embeddings(  # noqa: N802  # the name of the RPC
        self, request: HttpBody, context: AnyContext
    ) -> AsyncIterator[HttpBody]:
        """POST /v1/embeddings"""
        for body in await self._json.answer(request, context, self._embeddings.answer):
            yield body

    async def Score(  # noqa: N802  # the name of the RPC
        self, request: HttpBody, context: AnyContext
    ) -> AsyncIterator[HttpBody]:
        """POST /v1/score"""
        for body in await self._json.answer(request, context, self._scoring.score):
            yield body

    async def Rerank(  # noqa: N802  # the name of the RPC
        self, request: HttpBody, context: AnyContext
    ) -> AsyncIterator[HttpBody]:
        """POST /v1/rerank"""
        for body in await self._json.answer(request, context, self._scoring.rerank):
            yield body

    async def Tokenize(  # noqa: N802  # the name of the RPC
        self, request: HttpBody, context: AnyContext
    ) -> AsyncIterator[HttpBody]:
        """POST /tokenize"""
        for body in await self._json.answer(request, context, self._tokenizing.tokenize):
            yield body

    async def Detokenize(  # noqa: N802  # the name of the RPC
        self, request: HttpBody, context: AnyContext
    ) -> AsyncIterator[HttpBody]:
        """POST /detokenize"""
        for body in await self._json.answer(request, context, self._tokenizing.detokenize):
            yield body

    async def ListModels(  # noqa: N802  # the name of the RPC
        self, request: openai_pb2.OpenAIListModelsRequest, context: AnyContext
    ) -> AsyncIterator[HttpBody]:
        """GET /v1/models"""
        try:
            models = [self._mesh.model_object(service) for service in self._models]
        except PagemeshError as error:
            yield await error_answer(context, error)
            return
        yield json_answer({"object": "list", "data": models})

    async def GetModel(  # noqa: N802  # the name of the RPC
        self, request: openai_pb2.OpenAIGetModelRequest, context: AnyContext
    ) -> AsyncIterator[HttpBody]:
        """GET /v1/models/{model}"""
        try:
            model = self._mesh.model_object(self._models.find(request.model))
        except PagemeshError as error:
            yield await error_answer(context, error)
            return
        yield json_answer(model)

    async def _answer(
        self, request: HttpBody, context: AnyContext, prepare: _Prepare
    ) -> AsyncGenerator[HttpBody, None]:
        """The whole answer or its pieces; an error as status and body, or as the stream's last event."""
        job: Job | None = None
        begun = False
        try:
            with self._admission.place():
                check_is_json(request.content_type)
                explains = self._explainer.is_wanted(context)
                job = await prepare(request.data, read_call(self._request_timeout))
                with job.generator.start(job.request) as generation:
                    if explains:
                        self._explainer.explain(generation)
                    if not job.stream:
                        yield await collect(job, generation)
                        return
                    async with aclosing(stream(job, generation)) as bodies:
                        async for body in bodies:
                            begun = True
                            yield body
        # RPC boundary: clients of HTTP must get a body, which the server's own boundary cannot send.
        except Exception as error:
            mapped = as_answerable(error)
            if job is not None and begun:
                yield events(job.responder.failure(mapped))
            else:
                yield await error_answer(context, mapped)
