"""`Inference.Embed`, `Score` and `Rerank`: from their messages to the embedding path and back."""

from __future__ import annotations

from collections.abc import Sequence

from pagemesh.errors import InvalidRequestError
from pagemesh.router.call import Call
from pagemesh.router.embedding.scoring import Texts, score
from pagemesh.router.embedding.vectors import MAX_INPUTS, EmbedOptions, Input, unpack
from pagemesh.router.generation.request import Usage
from pagemesh.router.models import ModelService
from pagemesh.router.servicers.generate_messages import usage_message
from pagemesh.tokenizer.model_defaults import shorten
from pagemesh.v1 import inference_pb2


async def embed_texts(
    service: ModelService, request: inference_pb2.EmbedRequest, call: Call
) -> inference_pb2.EmbedResponse:
    """The answer to a request; InvalidRequestError for no texts, too many, or one without tokens."""
    field, inputs = _inputs(request)
    if request.dimensions:
        service.model.matryoshka.check(request.dimensions)
    found = await service.embedder.embed(
        inputs, field, call, EmbedOptions(request.priority, request.cache_salt)
    )
    vectors: list[Sequence[float]] = [unpack(vector) for vector in found.vectors]
    if request.dimensions:
        vectors = [shorten(vector, request.dimensions) for vector in vectors]
    return inference_pb2.EmbedResponse(
        embeddings=[inference_pb2.Embedding(values=vector) for vector in vectors],
        usage=usage_message(Usage(found.num_prompt_tokens, 0, found.num_cached_tokens)),
    )


async def score_texts(
    service: ModelService, request: inference_pb2.ScoreRequest, call: Call
) -> inference_pb2.ScoreResponse:
    """The answer to a request; InvalidRequestError as for embedding, and where numbers do not fit."""
    first = Texts("first_texts", _some("first_texts", request.first_texts))
    second = Texts("second_texts", _some("second_texts", request.second_texts))
    scores = await score(service.embedder, first, second, call, EmbedOptions(request.priority))
    return inference_pb2.ScoreResponse(scores=scores.values, usage=usage_message(scores.usage))


async def rerank_documents(
    service: ModelService, request: inference_pb2.RerankRequest, call: Call
) -> inference_pb2.RerankResponse:
    """The answer to a request; InvalidRequestError as for embedding."""
    query = Texts("query", [request.query])
    documents = Texts("documents", _some("documents", request.documents))
    scores = await score(service.embedder, query, documents, call, EmbedOptions(request.priority))
    return inference_pb2.RerankResponse(
        documents=[
            inference_pb2.RankedDocument(index=index, score=scores.values[index])
            for index in scores.order(request.top_count)
        ],
        usage=usage_message(scores.usage),
    )


def _inputs(request: inference_pb2.EmbedRequest) -> tuple[str, list[Input]]:
    """The field that is set, and what is in it."""
    if request.token_ids and request.texts:
        raise InvalidRequestError("texts and token_ids are both set", param="token_ids")
    if request.token_ids:
        ids: list[Input] = [list(each.ids) for each in request.token_ids]
        return "token_ids", _some("token_ids", ids)
    return "texts", _some("texts", request.texts)


def _some(field: str, inputs: Sequence[Input]) -> list[Input]:
    if not 0 < len(inputs) <= MAX_INPUTS:
        raise InvalidRequestError(
            f"{field} has {len(inputs)} entries, but must have 1 to {MAX_INPUTS}", param=field
        )
    return list(inputs)
