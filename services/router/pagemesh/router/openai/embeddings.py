"""POST /v1/embeddings: its body and its answer."""

from __future__ import annotations

import base64
from typing import Annotated, Any, Literal

import pydantic
from pydantic import Field

from pagemesh.router.call import Call
from pagemesh.router.embedding.vectors import (
    MAX_INPUTS,
    Embeddings,
    pack,
    unpack,
)
from pagemesh.router.models import Models
from pagemesh.router.openai.fields import MAX_INT32, check_fields, parse_object
from pagemesh.router.openai.prompts import Prompts, check_prompts, list_prompts
from pagemesh.router.openai.unsupported import OF_POOLING, refuse_unsupported
from pagemesh.tokenizer.matryoshka import shorten


class EmbeddingRequest(pydantic.BaseModel):
    """A valid request; null means the same as absent, and fields that nobody knows are ignored."""

    model_config = pydantic.ConfigDict(strict=True, allow_inf_nan=False)

    input: Prompts
    model: str | None = None
    encoding_format: Literal["float", "base64"] | None = None
    dimensions: Annotated[int, Field(ge=1, le=MAX_INT32)] | None = None
    priority: Annotated[int, Field(ge=-MAX_INT32, le=MAX_INT32)] | None = None
    cache_salt: Annotated[str, Field(min_length=1)] | None = None


def parse_embedding_request(body: bytes) -> EmbeddingRequest:
    """Read and check a body; raises InvalidRequestError or UnsupportedError naming the field."""
    raw = parse_object(body)
    refuse_unsupported(raw, neutral_values=OF_POOLING)
    check_prompts("input", raw.get("input"), MAX_INPUTS)
    return check_fields(EmbeddingRequest, raw)


class EmbeddingEndpoint:
    """Answers for the models of a mesh."""

    def __init__(self, models: Models) -> None:
        self._models = models

    async def answer(self, body: bytes, call: Call) -> dict[str, Any]:
        """The answer to a body."""
        fields = parse_embedding_request(body)
        service = self._models.find(fields.model, call)
        if fields.dimensions is not None:
            service.model.matryoshka.check(fields.dimensions)
        embeddings = await service.embedder.embed(
            list_prompts(fields.input),
            "input",
            call,
            fields.priority or 0,
            fields.cache_salt or "",
        )
        vectors = embeddings.vectors
        if fields.dimensions is not None:
            vectors = [pack(shorten(unpack(vector), fields.dimensions)) for vector in vectors]
        return embedding_answer(
            service.model.name,
            embeddings._replace(vectors=vectors),
            fields.encoding_format == "base64",
        )


def embedding_answer(model_name: str, embeddings: Embeddings, is_base64: bool) -> dict[str, Any]:
    """OpenAI's object: vectors as numbers, or as base64 of float32, little-endian."""
    data = [
        {
            "object": "embedding",
            "index": index,
            "embedding": base64.b64encode(vector).decode() if is_base64 else unpack(vector),
        }
        for index, vector in enumerate(embeddings.vectors)
    ]
    num_tokens = embeddings.num_prompt_tokens
    usage = {"prompt_tokens": num_tokens, "total_tokens": num_tokens}
    return {"object": "list", "data": data, "model": model_name, "usage": usage}
