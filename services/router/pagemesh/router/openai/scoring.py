"""POST /v1/score and /v1/rerank.

The fields and answers are vLLM's (https://docs.vllm.ai), those of rerank also Jina's and Cohere's.
"""

from __future__ import annotations

from typing import Annotated, Any, Final

from pydantic import Field

from pagemesh.errors import InvalidRequestError
from pagemesh.router.call import Call
from pagemesh.router.embedding.scoring import Scores, Texts, score
from pagemesh.router.embedding.vectors import MAX_INPUTS
from pagemesh.router.models import Models, ModelService
from pagemesh.router.openai.fields import MAX_INT32, parse_object
from pagemesh.router.openai.lax_types import LAX, Truth
from pagemesh.router.openai.pooling import PoolingFields, prompt_usage, read_pooling

_Texts = str | Annotated[list[str], Field(min_length=1, max_length=MAX_INPUTS, fail_fast=True)]

_PAIRS: Final = (
    ("queries", "documents"),
    ("queries", "items"),
    ("data_1", "data_2"),
    ("text_1", "text_2"),
)
"""Names under which vLLM takes the texts of a score, in the order in which it looks for them."""


class ScoreRequest(PoolingFields):
    """A valid request for scores; null means the same as absent."""

    queries: _Texts | None = None
    documents: _Texts | None = None
    items: _Texts | None = None
    data_1: _Texts | None = None
    data_2: _Texts | None = None
    text_1: _Texts | None = None
    text_2: _Texts | None = None

    @property
    def pair(self) -> tuple[str, str]:
        """The fields that are compared; raises InvalidRequestError where one is missing."""
        given = [(first, second) for first, second in _PAIRS if getattr(self, first) is not None]
        for first, second in given:
            if getattr(self, second) is not None:
                return first, second
        if given:
            missing = " or ".join(second for _, second in given)
            raise InvalidRequestError(f"{missing} is missing", param=given[0][1])
        names = ", ".join(f"{first} and {second}" for first, second in _PAIRS)
        raise InvalidRequestError(f"there are no texts: there must be {names}", param="queries")


class RerankRequest(PoolingFields):
    """A valid request to put documents in order; null means the same as absent."""

    query: str
    documents: _Texts
    top_n: Annotated[int, Field(ge=0, le=MAX_INT32), LAX] | None = None
    return_documents: Truth | None = None


class ScoringEndpoint:
    """Answers for the models of a mesh."""

    def __init__(self, models: Models) -> None:
        self._models = models

    async def score(self, body: bytes, call: Call) -> dict[str, Any]:
        """The answer to POST /v1/score."""
        fields = read_pooling(ScoreRequest, parse_object(body))
        service = self._models.find(fields.model, call)
        first, second = fields.pair
        scores = await _compare(
            service,
            fields,
            (first, getattr(fields, first)),
            (second, getattr(fields, second)),
            call,
        )
        return {
            "id": f"score-{call.request_id}",
            "object": "list",
            "created": call.created,
            "model": service.model.name,
            "data": [
                {"index": index, "object": "score", "score": value}
                for index, value in enumerate(scores.values)
            ],
            "usage": prompt_usage(scores.usage.num_prompt_tokens),
        }

    async def rerank(self, body: bytes, call: Call) -> dict[str, Any]:
        """The answer to POST /v1/rerank: documents by how near they are to the query, the nearest first."""
        fields = read_pooling(RerankRequest, parse_object(body))
        service = self._models.find(fields.model, call)
        query, documents = ("query", fields.query), ("documents", fields.documents)
        scores = await _compare(service, fields, query, documents, call)
        return {
            "id": f"rerank-{call.request_id}",
            "model": service.model.name,
            "usage": prompt_usage(scores.usage.num_prompt_tokens),
            "results": _results(fields, scores),
        }


async def _compare(
    service: ModelService,
    fields: PoolingFields,
    first: tuple[str, _Texts],
    second: tuple[str, _Texts],
    call: Call,
) -> Scores:
    """Of texts, each with the name of its field."""
    left, right = [
        Texts(name, await fields.encode(service, _list(texts), name))
        for name, texts in (first, second)
    ]
    return await score(service.embedder, left, right, call, fields.options)


def _results(fields: RerankRequest, scores: Scores) -> list[dict[str, Any]]:
    results = []
    documents = _list(fields.documents)
    for index in scores.order(fields.top_n or 0):
        result: dict[str, Any] = {"index": index, "relevance_score": scores.values[index]}
        if fields.return_documents is not False:
            result["document"] = {"text": documents[index]}
        results.append(result)
    return results


def _list(texts: str | list[str]) -> list[str]:
    return [texts] if isinstance(texts, str) else texts
