"""The `Inference` service: typed messages in and out."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import aclosing

from pagemesh.errors import InvalidRequestError
from pagemesh.router.chat.conversation import render
from pagemesh.router.chat.renaming import in_words_of
from pagemesh.router.generation.admission import Admission
from pagemesh.router.generation.request import Idle
from pagemesh.router.models import Models, ModelService
from pagemesh.router.routing.candidate import Role
from pagemesh.router.servicers.chat_messages import CHAT_NAMES, read_chat
from pagemesh.router.servicers.embed_messages import embed_texts, rerank_documents, score_texts
from pagemesh.router.servicers.explain import Explainer
from pagemesh.router.servicers.generate_request import prepare_generation
from pagemesh.router.servicers.read_call import AnyContext, read_call
from pagemesh.v1 import inference_pb2, inference_pb2_grpc


class InferenceServicer(inference_pb2_grpc.InferenceServicer):
    """Serves gRPC clients; errors reach them as statuses through the server's boundary."""

    def __init__(
        self,
        models: Models,
        admission: Admission,
        request_timeout: float,
        *,
        explains_routes: bool,
    ) -> None:
        self._models = models
        self._admission = admission
        self._explainer = Explainer(is_allowed=explains_routes)
        self._request_timeout = request_timeout

    async def Generate(  # noqa: N802  # the name of the RPC
        self, request: inference_pb2.GenerateRequest, context: AnyContext
    ) -> AsyncIterator[inference_pb2.GenerateResponse]:
        """Generates text; the stream carries text as it is produced."""
        with self._admission.place():
            explains = self._explainer.is_wanted(context)
            call = read_call(self._request_timeout).in_session(request.session_id)
            service = self._models.find(request.model, call)
            job = await prepare_generation(service, request, call)
            with service.generator.start(job.request) as generation:
                if explains:
                    self._explainer.explain(generation)
                async with aclosing(generation.deltas()) as deltas:
                    async for delta in deltas:
                        if isinstance(delta, Idle):
                            continue
                        response = job.answer.response(delta)
                        if job.answer.is_over:
                            response.usage.CopyFrom(job.answer.usage(generation.usage()))
                        yield response

    async def Embed(  # noqa: N802  # the name of the RPC
        self, request: inference_pb2.EmbedRequest, context: AnyContext
    ) -> inference_pb2.EmbedResponse:
        """Embeds texts, where the model can."""
        with self._admission.place():
            call = read_call(self._request_timeout)
            return await embed_texts(self._models.find(request.model, call), request, call)

    async def Score(  # noqa: N802  # the name of the RPC
        self, request: inference_pb2.ScoreRequest, context: AnyContext
    ) -> inference_pb2.ScoreResponse:
        """Says how alike texts are, where the model embeds."""
        with self._admission.place():
            call = read_call(self._request_timeout)
            return await score_texts(self._models.find(request.model, call), request, call)

    async def Rerank(  # noqa: N802  # the name of the RPC
        self, request: inference_pb2.RerankRequest, context: AnyContext
    ) -> inference_pb2.RerankResponse:
        """Puts documents in order, where the model embeds."""
        with self._admission.place():
            call = read_call(self._request_timeout)
            return await rerank_documents(self._models.find(request.model, call), request, call)

    async def Tokenize(  # noqa: N802  # the name of the RPC
        self, request: inference_pb2.TokenizeRequest, context: AnyContext
    ) -> inference_pb2.TokenizeResponse:
        """Turns text or messages into token ids."""
        call = read_call(self._request_timeout)
        service = self._models.find(request.model, call)
        tokenizer = service.model.tokenizer
        match request.WhichOneof("input"):
            case "text":
                ids = await tokenizer.encode(request.text, add_special_tokens=True)
            case "chat":
                chat = read_chat(request.chat)
                with in_words_of(CHAT_NAMES):
                    prompt = await render(service.model, chat, chat.tool_use)
                # The template writes the special tokens itself.
                ids = await tokenizer.encode(prompt, add_special_tokens=False)
            case _:
                raise InvalidRequestError("neither text nor chat is set", param="input")
        return inference_pb2.TokenizeResponse(
            token_ids=ids, max_model_len=service.workers.max_model_len() or 0
        )

    async def Detokenize(  # noqa: N802  # the name of the RPC
        self, request: inference_pb2.DetokenizeRequest, context: AnyContext
    ) -> inference_pb2.DetokenizeResponse:
        """Turns token ids into text, special tokens included."""
        call = read_call(self._request_timeout)
        model = self._models.find(request.model, call).model
        ids = list(request.token_ids)
        if ids:
            model.check_token_ids(ids, "token_ids")
        text = model.tokenizer.decode(ids, skip_special_tokens=False)
        return inference_pb2.DetokenizeResponse(text=text)

    async def ListModels(  # noqa: N802  # the name of the RPC
        self, request: inference_pb2.ListModelsRequest, context: AnyContext
    ) -> inference_pb2.ListModelsResponse:
        """Lists the models that workers serve."""
        models = [
            inference_pb2.Model(
                name=served.name,
                max_model_len=min((s.workers.max_model_len() or 0) for s in served.services),
                decode_worker_count=_num_workers(served.services, Role.DECODE),
                prefill_worker_count=_num_workers(served.services, Role.PREFILL),
                quantization=served.quantization,
            )
            for served in self._models.names()
        ]
        return inference_pb2.ListModelsResponse(models=models)


def _num_workers(services: Sequence[ModelService], role: Role) -> int:
    return sum(len(service.workers.reachable(role)) for service in services)
