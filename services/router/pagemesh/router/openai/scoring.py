"""POST /v1/score and /v1/rerank.

The fields and answers are vLLM's (https://docs.vllm.ai), those of rerank also Jina's and Cohere's.
"""

from __future__ import annotations

from typing import Annotated, Any

import pydantic
from pydantic import Field

from pagemesh.router.call import Call
from pagemesh.router.embedding.scoring import Scores, Texts, score
from pagemesh.router.embedding.vectors import MAX_INPUTS
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
        scores = await score(
            service.embedder,
            Texts("text_1", first),
            Texts("text_2", second),
            call,
            fields.priority or 0,
        )
        num_tokens = scores.usage.num_prompt_tokens
        return {
            "id": f"score-{call.request_id}",
            "object": "list",
            "created": call.created,
            "model": service.model.name,
            "data": [
                {"index": index, "object": "score", "score": value}
                for index, value in enumerate(scores.values)
            ],
            "usage": {"prompt_tokens": num_tokens, "total_tokens": num_tokens},
        }

    async def rerank(self, body: bytes, call: Call) -> dict[str, Any]:
        """The answer to POST /v1/rerank: documents by how near they are to the query, the nearest first."""
        raw = parse_object(body)
        refuse_unsupported(raw, neutral_values=OF_POOLING)
        fields = check_fields(RerankRequest, raw)
        service = self._models.find(fields.model, call)
        scores = await score(
            service.embedder,
            Texts("query", [fields.query]),
            Texts("documents", fields.documents),
            call,
            fields.priority or 0,
        )
        return {
            "id": f"rerank-{call.request_id}",
            "model": service.model.name,
            "usage": {"total_tokens": scores.usage.num_prompt_tokens},
            "results": _results(fields, scores),
        }


def _results(fields: RerankRequest, scores: Scores) -> list[dict[str, Any]]:
    results = []
    for index in scores.order(fields.top_n or 0):
        result: dict[str, Any] = {"index": index, "relevance_score": scores.values[index]}
        if fields.return_documents is not False:
            result["document"] = {"text": fields.documents[index]}
        results.append(result)
    return results


def _list(texts: str | list[str]) -> list[str]:
    return [texts] if isinstance(texts, str) else texts
