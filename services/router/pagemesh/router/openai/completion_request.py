"""The body of POST /v1/completions."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from pagemesh.errors import InvalidRequestError
from pagemesh.router.openai.fields import (
    MAX_INT32,
    RequestFields,
    parse_object,
    validate,
)
from pagemesh.router.openai.lax_types import LAX, Truth
from pagemesh.router.openai.prompts import Prompts, check_prompts, list_prompts
from pagemesh.router.openai.unsupported import refuse_foreign, refuse_unsupported
from pagemesh.sampling.params import MAX_LOGPROBS

MAX_PROMPTS = 128
"""Most prompts in one request: each of them is a sequence of its own in the batch."""

DEFAULT_MAX_TOKENS = 16
"""OpenAI's default for completions."""


class CompletionRequest(RequestFields):
    """A valid request to continue one or several prompts."""

    prompt: Prompts
    logprobs: Annotated[int, Field(ge=0, le=MAX_LOGPROBS), LAX] | None = None
    best_of: Annotated[int, Field(ge=1, le=MAX_INT32), LAX] | None = None
    echo: Truth | None = None
    suffix: str | None = None
    max_tokens: Annotated[int, Field(ge=0, le=MAX_INT32), LAX] | None = None

    @property
    def num_answers(self) -> int:
        """Answers generated for each prompt, of which the best `n` are given."""
        return self.best_of or self.n or 1

    @property
    def num_logprobs(self) -> int | None:
        """Likeliest tokens that are named beside each token of an answer; None without any logprobs."""
        return self.logprobs

    @property
    def num_prompt_logprobs(self) -> int | None:
        """Likeliest tokens that are named beside each token of a prompt, which may be echoed."""
        if self.prompt_logprobs is None:
            return self.logprobs if self.echo else None
        return max(self.prompt_logprobs, self.logprobs or 0 if self.echo else 0)

    @property
    def prompts(self) -> list[str | list[int]]:
        """Every prompt, as text or token ids."""
        return list_prompts(self.prompt)


def parse_completion_request(body: bytes) -> CompletionRequest:
    """Read and check a body; raises InvalidRequestError or UnsupportedError naming the field."""
    raw = parse_object(body)
    refuse_unsupported(raw, served=("echo", "suffix"))
    refuse_foreign(raw, "top_logprobs")
    check_prompts("prompt", raw.get("prompt"), MAX_PROMPTS)
    fields = validate(CompletionRequest, raw)
    _check_best_of(fields)
    _check_echo(fields)
    return fields


def _check_best_of(fields: CompletionRequest) -> None:
    n = fields.n or 1
    if fields.num_answers < n:
        raise InvalidRequestError(
            f"best_of is {fields.best_of}, but must be at least n, which is {n}", param="best_of"
        )
    if fields.stream and fields.num_answers > n:
        raise InvalidRequestError(
            f"best_of is {fields.best_of}, but a stream cannot wait for the best answers: it must equal"
            f" n, which is {n}",
            param="best_of",
        )


def _check_echo(fields: CompletionRequest) -> None:
    if fields.max_tokens == 0 and not fields.echo:
        raise InvalidRequestError(
            "max_tokens is 0, but must be at least 1 unless echo is true", param="max_tokens"
        )
