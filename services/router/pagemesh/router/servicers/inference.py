"""The `Inference` service: typed messages in and out."""

from __future__ import annotations

import secrets
from collections.abc import AsyncIterator, Sequence
from contextlib import aclosing
from dataclasses import replace

from pagemesh.errors import InvalidRequestError
from pagemesh.router.embedding.vectors import PromptEmbedder
from pagemesh.router.generation.admission import Admission
from pagemesh.router.generation.interface import TextGenerator
from pagemesh.router.generation.limits import resolve_max_tokens
from pagemesh.router.generation.request import Choice, GenerationRequest, Idle
from pagemesh.router.routing.candidate import Role
from pagemesh.router.served_model import ServedModel
from pagemesh.router.servicers.embed_messages import embed_texts
from pagemesh.router.servicers.explain import Explainer
from pagemesh.router.servicers.generate_messages import check_stops, generate_response, read_chat
from pagemesh.router.servicers.read_call import AnyContext, read_call
from pagemesh.router.workers import Workers
from pagemesh.sampling.params import MAX_TEMPERATURE, SamplingParams
from pagemesh.sampling.validation import check_sampling
from pagemesh.v1 import inference_pb2, inference_pb2_grpc, types_pb2
from pagemesh.worker.messages import sampling_from_proto


class InferenceServicer(inference_pb2_grpc.InferenceServicer):
    """Serves gRPC clients; errors reach them as statuses through the server's boundary."""

    def __init__(
        self,
        model: ServedModel,
        workers: Workers,
        generator: TextGenerator,
        embedder: PromptEmbedder,
        admission: Admission,
        request_timeout: float,
        *,
        explains_routes: bool,
    ) -> None:
        self._model = model
        self._workers = workers
        self._generator = generator
        self._embedder = embedder
        self._admission = admission
        self._explainer = Explainer(is_allowed=explains_routes)
        self._request_timeout = request_timeout

    async def Generate(  # noqa: N802  # the name of the RPC
        self, request: inference_pb2.GenerateRequest, context: AnyContext
    ) -> AsyncIterator[inference_pb2.GenerateResponse]:
        """Generates text; the stream carries text as it is produced."""
        with self._admission.place():
            explains = self._explainer.is_wanted(context)
            prepared = await self._prepare(request)
            with self._generator.start(prepared) as generation:
                async with aclosing(generation.deltas()) as deltas:
                    async for delta in deltas:
                        if explains:
                            await context.send_initial_metadata(self._explainer.headers(generation))
                            explains = False
                        if isinstance(delta, Idle):
                            continue
                        usage = generation.usage() if delta.stop_reason is not None else None
                        yield generate_response(delta, usage)

    async def Embed(  # noqa: N802  # the name of the RPC
        self, request: inference_pb2.EmbedRequest, context: AnyContext
    ) -> inference_pb2.EmbedResponse:
        """Embeds texts, where the model can."""
        with self._admission.place():
            call = read_call(self._request_timeout)
            self._model.check_name(request.model)
            return await embed_texts(self._embedder, request, call)

    async def Tokenize(  # noqa: N802  # the name of the RPC
        self, request: inference_pb2.TokenizeRequest, context: AnyContext
    ) -> inference_pb2.TokenizeResponse:
        """Turns text or messages into token ids."""
        self._model.check_name(request.model)
        match request.WhichOneof("input"):
            case "text":
                ids = await self._model.tokenizer.encode(request.text, add_special_tokens=True)
            case "chat":
                ids = await self._model.tokenizer.encode_chat(read_chat(request.chat))
            case _:
                raise InvalidRequestError("neither text nor chat is set", param="input")
        return inference_pb2.TokenizeResponse(
            token_ids=ids, max_model_len=self._workers.max_model_len() or 0
        )

    async def Detokenize(  # noqa: N802  # the name of the RPC
        self, request: inference_pb2.DetokenizeRequest, context: AnyContext
    ) -> inference_pb2.DetokenizeResponse:
        """Turns token ids into text, special tokens included."""
        self._model.check_name(request.model)
        ids = list(request.token_ids)
        if ids:
            self._model.check_token_ids(ids, "token_ids")
        text = self._model.tokenizer.decode(ids, skip_special_tokens=False)
        return inference_pb2.DetokenizeResponse(text=text)

    async def ListModels(  # noqa: N802  # the name of the RPC
        self, request: inference_pb2.ListModelsRequest, context: AnyContext
    ) -> inference_pb2.ListModelsResponse:
        """Lists the models that workers serve."""
        model = inference_pb2.Model(
            name=self._model.name,
            max_model_len=self._workers.max_model_len() or 0,
            decode_worker_count=len(self._workers.reachable(Role.DECODE)),
            prefill_worker_count=len(self._workers.reachable(Role.PREFILL)),
        )
        return inference_pb2.ListModelsResponse(models=[model])

    async def _prepare(self, request: inference_pb2.GenerateRequest) -> GenerationRequest:
        call = read_call(self._request_timeout)
        self._model.check_name(request.model)
        check_stops(request)
        field = request.WhichOneof("prompt") or "prompt"
        max_model_len = self._workers.require_max_model_len()
        prompt = await self._encode(request, field, max_model_len)
        wanted = types_pb2.SamplingParams()
        wanted.CopyFrom(request.sampling)
        wanted.max_tokens = resolve_max_tokens(
            len(prompt),
            max_model_len,
            request.sampling.max_tokens or None,
            None,
            prompt_field=field,
            limit_field="sampling.max_tokens",
        )
        if not request.use_seed:
            wanted.seed = secrets.randbits(63)
        sampling = self._check_sampling(sampling_from_proto(wanted), request.bad_words)
        return GenerationRequest(
            call=call,
            choices=(Choice(tuple(prompt), sampling),),
            num_prompts=1,
            stop=tuple(request.stop),
            priority=request.priority,
        )

    def _check_sampling(self, sampling: SamplingParams, bad_words: Sequence[str]) -> SamplingParams:
        """The parameters with the bad words' ids; InvalidRequestError names the message's field."""
        if sampling.temperature > MAX_TEMPERATURE:
            raise InvalidRequestError(
                f"sampling.temperature is {sampling.temperature}, but must be at most {MAX_TEMPERATURE}",
                param="sampling.temperature",
            )
        try:
            check_sampling(sampling, self._model.tokenizer.vocab_size)
        except InvalidRequestError as error:
            message = f"sampling.{error.message}"
            raise InvalidRequestError(message, param=f"sampling.{error.param}") from error
        sequences = self._model.encode_bad_words(bad_words)
        return replace(sampling, bad_words_token_ids=sampling.bad_words_token_ids + sequences)

    async def _encode(
        self, request: inference_pb2.GenerateRequest, field: str, max_model_len: int
    ) -> list[int]:
        match field:
            case "text":
                return await self._model.encode_prompt(request.text, field, max_model_len)
            case "chat":
                messages = read_chat(request.chat)
                return await self._model.encode_chat(messages, field, max_model_len)
            case "token_ids":
                return self._model.check_token_ids(list(request.token_ids.ids), field)
        raise InvalidRequestError("none of text, chat and token_ids is set", param=field)
