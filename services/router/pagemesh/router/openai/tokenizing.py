"""POST /tokenize and /detokenize, with vLLM's fields and answers."""

from __future__ import annotations

from typing import Annotated, Any

import pydantic
from pydantic import Field

from pagemesh.errors import InvalidRequestError, UnsupportedError
from pagemesh.router.call import Call
from pagemesh.router.chat.conversation import render
from pagemesh.router.models import Models, ModelService
from pagemesh.router.openai.chat_request import read_chat_request
from pagemesh.router.openai.fields import TokenId, check_fields, parse_object
from pagemesh.router.openai.lax_types import LAX, Truth
from pagemesh.router.served_model import ServedModel


class _Fields(pydantic.BaseModel):
    """What both kinds of request have; null means the same as absent."""

    model_config = pydantic.ConfigDict(strict=True)

    return_token_strs: Truth | None = None
    model: str | None = None


class TokenizeRequest(_Fields):
    """A plain text to tokenize."""

    prompt: str
    add_special_tokens: Truth | None = None


class TokenizeChatRequest(_Fields):
    """A conversation to tokenize; the fields of chat completions that make its prompt belong to it."""

    messages: list[Any]


class DetokenizeRequest(pydantic.BaseModel):
    """Token ids to turn into text; null means the same as absent."""

    model_config = pydantic.ConfigDict(strict=True)

    tokens: Annotated[list[TokenId], Field(fail_fast=True), LAX]
    model: str | None = None


class TokenizingEndpoint:
    """Answers for the models of a mesh."""

    def __init__(self, models: Models) -> None:
        self._models = models

    async def tokenize(self, body: bytes, call: Call) -> dict[str, Any]:
        """The answer to POST /tokenize."""
        raw = parse_object(body)
        if ("prompt" in raw) == ("messages" in raw):
            raise InvalidRequestError(
                "there must be either prompt or messages, and not both", param="prompt"
            )
        if "messages" in raw:
            return await self._tokenize_chat(raw, call)
        fields = check_fields(TokenizeRequest, raw)
        service = self._models.find(fields.model, call)
        ids = await service.model.tokenizer.encode(
            fields.prompt, add_special_tokens=fields.add_special_tokens is not False
        )
        return _answer(service, ids, fields)

    async def _tokenize_chat(self, raw: dict[str, Any], call: Call) -> dict[str, Any]:
        fields = check_fields(TokenizeChatRequest, raw)
        chat = read_chat_request(raw)
        service = self._models.find(fields.model, call)
        prompt = await render(service.model, chat, chat.tool_use)
        # The template writes the special tokens itself.
        ids = await service.model.tokenizer.encode(
            prompt, add_special_tokens=bool(chat.add_special_tokens)
        )
        return _answer(service, ids, fields)

    async def detokenize(self, body: bytes, call: Call) -> dict[str, Any]:
        """The answer to POST /detokenize; special tokens are part of the text, as in vLLM."""
        fields = check_fields(DetokenizeRequest, parse_object(body))
        model = self._models.find(fields.model, call).model
        if fields.tokens:
            model.check_token_ids(fields.tokens, "tokens")
        return {"prompt": model.tokenizer.decode(fields.tokens, skip_special_tokens=False)}


def tokenizer_info(model: ServedModel) -> dict[str, Any]:
    """The answer to GET /tokenizer_info: tokenizer_config.json with the chat template that is used."""
    try:
        template = model.chat.templates.choose().source
    except UnsupportedError:
        template = None
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        **model.tokenizer.settings,
        "chat_template": template,
    }


def _answer(service: ModelService, ids: list[int], fields: _Fields) -> dict[str, Any]:
    tokenizer = service.model.tokenizer
    return {
        "count": len(ids),
        "max_model_len": service.workers.require_max_model_len(),
        "tokens": ids,
        "token_strs": tokenizer.token_strings(ids) if fields.return_token_strs else None,
    }
