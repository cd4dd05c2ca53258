"""POST /v1/score and /v1/rerank: how alike texts are, by the angle between their embeddings.

The fields and answers are vLLM's (https://docs.vllm.ai), those of rerank also Jina's and Cohere's. Models that
judge pairs of texts themselves (cross-encoders) are none that pagemesh runs.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

import numpy as np
import pydantic
from pydantic import Field

from pagemesh.errors import InvalidRequestError
from pagemesh.router.call import Call
from pagemesh.router.embedding.vectors import MAX_INPUTS, Embeddings
from pagemesh.router.models import Models
from pagemesh.router.openai.fields import MAX_INT32, check_fields, parse_object
from pagemesh.router.openai.unsupported import OF_POOLING, refuse_unsupported

_Texts = Annotated[list[str], Field(min_length=1, max_length=MAX_INPUTS, fail_fast=True)]
_Priority = Annotated[int, Field(ge=-MAX_INT32, le=MAX_INT32)]


class ScoreRequest(pydantic.BaseModel):
    """A valid request for scores; null means the same as absent."""

    model_config = pydantic.ConfigDict(strict=True)

    text_1: str | _Texts
    text_2: str | _Texts
    model: str | None = None
    priority: _Priority | None = None


class RerankRequest(pydantic.BaseModel):
    """A valid request to put documents in order; null means the same as absent."""

    model_config = pydantic.ConfigDict(strict=True)

    query: str
    documents: _Texts
    top_n: Annotated[int, Field(ge=0, le=MAX_INT32)] | None = None
    return_documents: bool | None = None
    model: str | None = None
    priority: _Priority | None = None


class ScoringEndpoint:
    """Answers for the models of a mesh."""

    def __init__(self, models: Models) -> None:
        self._models = models

    async def score(self, body: bytes, call: Call) -> dict[str, Any]:
        """The answer to POST /v1/score."""
        raw = parse_object(body)
        refuse_unsupported(raw, neutral_values=OF_POOLING)
        fields = check_fields(ScoreRequest, raw)
        service = self._models.find(fields.model, call)
        first, second = _list(fields.text_1), _list(fields.text_2)
        if len(first) not in (1, len(second)):
            raise InvalidRequestError(
                f"text_1 has {len(first)} entries and text_2 has {len(second)}: there must be as many, or one"
                " in text_1",
                param="text_1",
            )
        left = await service.embedder.embed(first, "text_1", call, fields.priority or 0)
        right = await service.embedder.embed(second, "text_2", call, fields.priority or 0)
        scores = _cosines(left.vectors, right.vectors)
        num_tokens = left.num_prompt_tokens + right.num_prompt_tokens
        return {
            "id": f"score-{call.request_id}",
            "object": "list",
            "created": call.created,
            "model": service.model.name,
            "data": [
                {"index": index, "object": "score", "score": score}
                for index, score in enumerate(scores)
            ],
            "usage": {"prompt_tokens": num_tokens, "total_tokens": num_tokens},
        }

    async def rerank(self, body: bytes, call: Call) -> dict[str, Any]:
        """The answer to POST /v1/rerank: documents by how near they are to the query, the nearest first."""
        raw = parse_object(body)
        refuse_unsupported(raw, neutral_values=OF_POOLING)
        fields = check_fields(RerankRequest, raw)
        service = self._models.find(fields.model, call)
        priority = fields.priority or 0
        query = await service.embedder.embed([fields.query], "query", call, priority)
        documents = await service.embedder.embed(fields.documents, "documents", call, priority)
        return {
            "id": f"rerank-{call.request_id}",
            "model": service.model.name,
            "usage": {"total_tokens": query.num_prompt_tokens + documents.num_prompt_tokens},
            "results": _results(fields, query, documents),
        }


def _results(
    fields: RerankRequest, query: Embeddings, documents: Embeddings
) -> list[dict[str, Any]]:
    scores = _cosines(query.vectors, documents.vectors)
    # Documents that are equally near stay in their own order.
    order = sorted(range(len(scores)), key=lambda index: -scores[index])
    results = []
    for index in order[: fields.top_n or None]:
        result: dict[str, Any] = {"index": index, "relevance_score": scores[index]}
        if fields.return_documents is not False:
            result["document"] = {"text": fields.documents[index]}
        results.append(result)
    return results


def _list(texts: str | list[str]) -> list[str]:
    return [texts] if isinstance(texts, str) else texts


def _cosines(first: Sequence[bytes], second: Sequence[bytes]) -> list[float]:
    """Of each vector of `second` and its partner; the only one of `first` is everybody's."""
    partners = first if len(first) == len(second) else [first[0]] * len(second)
    return [_cosine(one, other) for one, other in zip(partners, second, strict=True)]


def _cosine(one: bytes, other: bytes) -> float:
    """0 where a vector has no direction."""
    first, second = (np.frombuffer(each, "<f4").astype(np.float64) for each in (one, other))
    lengths = float(np.linalg.norm(first) * np.linalg.norm(second))
    return float(first @ second) / lengths if lengths else 0.0
