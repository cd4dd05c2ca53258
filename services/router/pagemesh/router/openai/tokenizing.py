"""POST /tokenize and /detokenize, with vLLM's fields and answers."""

from __future__ import annotations

from typing import Annotated, Any

import pydantic
from pydantic import Field

from pagemesh.errors import InvalidRequestError
from pagemesh.router.call import Call
from pagemesh.router.models import Models, ModelService
from pagemesh.router.openai.fields import TokenId, check_fields, parse_object


class TokenizeRequest(pydantic.BaseModel):
    """A plain text to tokenize; null means the same as absent."""

    model_config = pydantic.ConfigDict(strict=True)

    prompt: str
    add_special_tokens: bool | None = None
    return_token_strs: bool | None = None
    model: str | None = None


class DetokenizeRequest(pydantic.BaseModel):
    """Token ids to turn into text; null means the same as absent."""

    model_config = pydantic.ConfigDict(strict=True)

    tokens: Annotated[list[TokenId], Field(fail_fast=True)]
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
        fields = check_fields(TokenizeRequest, raw)
        service = self._models.find(fields.model)
        ids = await service.model.tokenizer.encode(
            fields.prompt, add_special_tokens=fields.add_special_tokens is not False
        )
        return _answer(service, ids, wants_strings=bool(fields.return_token_strs))

    async def detokenize(self, body: bytes, call: Call) -> dict[str, Any]:
        """The answer to POST /detokenize; special tokens are part of the text, as in vLLM."""
        fields = check_fields(DetokenizeRequest, parse_object(body))
        model = self._models.find(fields.model).model
        if fields.tokens:
            model.check_token_ids(fields.tokens, "tokens")
        return {"prompt": model.tokenizer.decode(fields.tokens, skip_special_tokens=False)}


def _answer(service: ModelService, ids: list[int], *, wants_strings: bool) -> dict[str, Any]:
    strings = service.model.tokenizer.token_strings(ids) if wants_strings else None
    return {
        "count": len(ids),
        "max_model_len": service.workers.require_max_model_len(),
        "tokens": ids,
        "token_strs": strings,
    }
