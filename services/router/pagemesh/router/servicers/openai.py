"""The `OpenAI` service: HTTP bodies in, HTTP bodies and event streams out."""

from __future__ import annotations

from collections.abc import AsyncIterator

from google.api.httpbody_pb2 import HttpBody

from pagemesh.errors import PagemeshError, ResponseNotFoundError
from pagemesh.router.generation.admission import Admission
from pagemesh.router.mesh_view import MeshView
from pagemesh.router.models import Models
from pagemesh.router.openai.embeddings import EmbeddingEndpoint
from pagemesh.router.openai.endpoints import Endpoints, invoked_by
from pagemesh.router.openai.scoring import ScoringEndpoint
from pagemesh.router.openai.tokenizing import TokenizingEndpoint
from pagemesh.router.responses_api.endpoint import ResponsesEndpoint
from pagemesh.router.servicers.generation_call import GenerationCalls
from pagemesh.router.servicers.http_answer import error_answer, json_answer
from pagemesh.router.servicers.json_call import JsonCalls
from pagemesh.router.servicers.read_call import AnyContext
from pagemesh.v1 import openai_pb2, openai_pb2_grpc


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
        self._responses = ResponsesEndpoint(models)
        self._embeddings = EmbeddingEndpoint(models)
        self._scoring = ScoringEndpoint(models)
        self._tokenizing = TokenizingEndpoint(models)
        self._json = JsonCalls(admission, request_timeout)
        self._generations = GenerationCalls(
            admission, request_timeout, explains_routes=explains_routes
        )
        self._mesh = mesh

    def ChatCompletions(  # noqa: N802  # the name of the RPC
        self, request: HttpBody, context: AnyContext
    ) -> AsyncIterator[HttpBody]:
        """POST /v1/chat/completions"""
        return self._generations.answer(request, context, self._endpoints.chat)

    async def RenderChat(  # noqa: N802  # the name of the RPC
        self, request: HttpBody, context: AnyContext
    ) -> AsyncIterator[HttpBody]:
        """POST /v1/chat/completions/render"""
        for body in await self._json.answer(request, self._endpoints.render_chat):
            yield body

    def Completions(  # noqa: N802  # the name of the RPC
        self, request: HttpBody, context: AnyContext
    ) -> AsyncIterator[HttpBody]:
        """POST /v1/completions"""
        return self._generations.answer(request, context, self._endpoints.completion)

    def Responses(  # noqa: N802  # the name of the RPC
        self, request: HttpBody, context: AnyContext
    ) -> AsyncIterator[HttpBody]:
        """POST /v1/responses"""
        return self._generations.answer(request, context, self._responses.prepare)

    async def StoredResponse(  # noqa: N802  # the name of the RPC
        self, request: openai_pb2.OpenAIStoredResponseRequest, context: AnyContext
    ) -> AsyncIterator[HttpBody]:
        """GET, DELETE and cancelling of /v1/responses/{id}"""
        error = ResponseNotFoundError(
            f"there is no response {request.response_id!r}: this mesh does not store responses, so that"
            " each is only given once, in answer to POST /v1/responses",
            param="response_id",
        )
        yield error_answer(error)

    async def Embeddings(  # noqa: N802  # the name of the RPC
        self, request: HttpBody, context: AnyContext
    ) -> AsyncIterator[HttpBody]:
        """POST /v1/embeddings"""
        for body in await self._json.answer(request, self._embeddings.embed):
            yield body

    async def Pooling(  # noqa: N802  # the name of the RPC
        self, request: HttpBody, context: AnyContext
    ) -> AsyncIterator[HttpBody]:
        """POST /pooling"""
        for body in await self._json.answer(request, self._embeddings.pool):
            yield body

    def Invocations(  # noqa: N802  # the name of the RPC
        self, request: HttpBody, context: AnyContext
    ) -> AsyncIterator[HttpBody]:
        """POST /invocations"""
        answers = {
            "messages": self.ChatCompletions,
            "prompt": self.Completions,
            "input": self.Embeddings,
            "query": self.Rerank,
            "queries": self.Score,
            "data_1": self.Score,
            "text_1": self.Score,
        }
        return answers[invoked_by(request.data, list(answers))](request, context)

    async def Score(  # noqa: N802  # the name of the RPC
        self, request: HttpBody, context: AnyContext
    ) -> AsyncIterator[HttpBody]:
        """POST /v1/score"""
        for body in await self._json.answer(request, self._scoring.score):
            yield body

    async def Rerank(  # noqa: N802  # the name of the RPC
        self, request: HttpBody, context: AnyContext
    ) -> AsyncIterator[HttpBody]:
        """POST /v1/rerank"""
        for body in await self._json.answer(request, self._scoring.rerank):
            yield body

    async def Tokenize(  # noqa: N802  # the name of the RPC
        self, request: HttpBody, context: AnyContext
    ) -> AsyncIterator[HttpBody]:
        """POST /tokenize"""
        for body in await self._json.answer(request, self._tokenizing.tokenize):
            yield body

    async def Detokenize(  # noqa: N802  # the name of the RPC
        self, request: HttpBody, context: AnyContext
    ) -> AsyncIterator[HttpBody]:
        """POST /detokenize"""
        for body in await self._json.answer(request, self._tokenizing.detokenize):
            yield body

    async def ListModels(  # noqa: N802  # the name of the RPC
        self, request: openai_pb2.OpenAIListModelsRequest, context: AnyContext
    ) -> AsyncIterator[HttpBody]:
        """GET /v1/models"""
        try:
            models = self._mesh.model_objects(self._models.names())
        except PagemeshError as error:
            yield error_answer(error)
            return
        yield json_answer({"object": "list", "data": models})

    async def GetModel(  # noqa: N802  # the name of the RPC
        self, request: openai_pb2.OpenAIGetModelRequest, context: AnyContext
    ) -> AsyncIterator[HttpBody]:
        """GET /v1/models/{model}"""
        try:
            model = self._mesh.model_object(self._models.named(request.model))
        except PagemeshError as error:
            yield error_answer(error)
            return
        yield json_answer(model)
