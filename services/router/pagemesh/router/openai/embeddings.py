"""POST /v1/embeddings, and vLLM's /pooling: their bodies and their answers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Final

from pydantic import Field

from pagemesh.errors import InvalidRequestError
from pagemesh.router.call import Call
from pagemesh.router.chat.conversation import render
from pagemesh.router.embedding.vectors import MAX_INPUTS, Input, pack, unpack
from pagemesh.router.models import Models, ModelService
from pagemesh.router.openai.chat_request import read_chat_request
from pagemesh.router.openai.fields import MAX_INT32, parse_object
from pagemesh.router.openai.lax_types import LAX
from pagemesh.router.openai.pooling import VectorFields, prompt_usage, read_pooling
from pagemesh.router.openai.prompts import Prompts, check_prompts, list_prompts
from pagemesh.tokenizer.model_defaults import shorten

_OF_CHAT: Final = (
    "messages",
    "add_generation_prompt",
    "continue_final_message",
    "add_special_tokens",
    "chat_template",
    "chat_template_kwargs",
)
"""Fields of chat completions that make the prompt of a conversation which is embedded."""


class EmbeddingRequest(VectorFields):
    """A valid request, for prompts or for a conversation."""

    input: Prompts | None = None
    messages: list[Any] | None = None
    dimensions: Annotated[int, Field(ge=1, le=MAX_INT32), LAX] | None = None


def parse_embedding_request(raw: dict[str, Any]) -> EmbeddingRequest:
    """Check a body; raises InvalidRequestError or UnsupportedError naming the field."""
    given = [name for name in ("input", "messages") if raw.get(name) is not None]
    if len(given) > 1:
        raise InvalidRequestError(
            "there must be either input or messages, and not both", param="messages"
        )
    if not given:
        raise InvalidRequestError("input is missing", param="input")
    check_prompts("input", raw.get("input"), MAX_INPUTS)
    return read_pooling(EmbeddingRequest, raw)


class EmbeddingEndpoint:
    """Answers for the models of a mesh."""

    def __init__(self, models: Models) -> None:
        self._models = models

    async def embed(self, body: bytes, call: Call) -> dict[str, Any]:
        """The answer to POST /v1/embeddings."""
        return await self._answer(body, call, "embd", "embedding", "embedding")

    async def pool(self, body: bytes, call: Call) -> dict[str, Any]:
        """The answer to POST /pooling: the same vectors under vLLM's other names."""
        return await self._answer(body, call, "pool", "pooling", "data")

    async def _answer(
        self, body: bytes, call: Call, prefix: str, kind: str, key: str
    ) -> dict[str, Any]:
        raw = parse_object(body)
        fields = parse_embedding_request(raw)
        service = self._models.find(fields.model, call)
        if fields.dimensions is not None:
            service.model.matryoshka.check(fields.dimensions)
        field, inputs = await _inputs(service, fields, raw)
        found = await service.embedder.embed(inputs, field, call, fields.options)
        vectors = found.vectors
        if fields.dimensions is not None:
            vectors = [pack(shorten(unpack(vector), fields.dimensions)) for vector in vectors]
        return {
            "id": f"{prefix}-{call.request_id}",
            "object": "list",
            "created": call.created,
            "model": service.model.name,
            "data": [
                {"index": index, "object": kind, key: fields.written(vector)}
                for index, vector in enumerate(vectors)
            ],
            "usage": prompt_usage(found.num_prompt_tokens),
        }


async def _inputs(
    service: ModelService, fields: EmbeddingRequest, raw: dict[str, Any]
) -> tuple[str, Sequence[Input]]:
    """What is embedded, and the field that it comes from."""
    if fields.input is not None:
        return "input", await fields.encode(service, list_prompts(fields.input), "input")
    # As in vLLM, an answer that would follow is no part of what is embedded.
    of_chat: dict[str, Any] = {
        "add_generation_prompt": False,
        **{n: raw[n] for n in _OF_CHAT if n in raw},
    }
    chat = read_chat_request(of_chat)
    max_model_len = service.workers.require_max_model_len()
    token_ids = await service.model.encode_rendered(
        await render(service.model, chat, chat.tool_use),
        "messages",
        max_model_len,
        # The template writes the special tokens itself.
        add_special_tokens=bool(chat.add_special_tokens),
        truncation=fields.truncation(max_model_len),
    )
    return "messages", [token_ids]
