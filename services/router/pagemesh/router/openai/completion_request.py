"""The body of POST /v1/completions."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field

from pagemesh.errors import InvalidRequestError
from pagemesh.router.openai.fields import (
    MAX_CHOICES,
    RequestFields,
    TokenId,
    parse_object,
    shown,
    validate,
)
from pagemesh.router.openai.unsupported import refuse_foreign, refuse_unsupported
from pagemesh.sampling.params import MAX_LOGPROBS

MAX_PROMPTS = 128
"""Most prompts in one request: each of them is a sequence of its own in the batch."""

DEFAULT_MAX_TOKENS = 16
"""OpenAI's default for completions."""


class CompletionRequest(RequestFields):
    """A valid request to continue one or several prompts."""

    # Without fail_fast, each of a million ids would be reported as not being a string.
    prompt: (
        str
        | Annotated[list[str], Field(fail_fast=True)]
        | Annotated[list[TokenId], Field(fail_fast=True)]
        | Annotated[list[Annotated[list[TokenId], Field(fail_fast=True)]], Field(fail_fast=True)]
    )

    logprobs: Annotated[int, Field(ge=0, le=MAX_LOGPROBS)] | None = None
    best_of: Annotated[int, Field(ge=1, le=MAX_CHOICES)] | None = None

    @property
    def num_answers(self) -> int:
        """Answers generated for each prompt, of which the best `n` are given."""
        return self.best_of or self.n or 1

    @property
    def num_logprobs(self) -> int | None:
        """Likeliest tokens that are named beside each token of an answer; None without any logprobs."""
        return self.logprobs

    @property
    def prompts(self) -> list[str | list[int]]:
        """Every prompt, as text or token ids."""
        if isinstance(self.prompt, str):
            return [self.prompt]
        ids = [item for item in self.prompt if isinstance(item, int)]
        if ids:
            return [ids]
        return [item for item in self.prompt if not isinstance(item, int)]


def parse_completion_request(body: bytes) -> CompletionRequest:
    """Read and check a body; raises InvalidRequestError or UnsupportedError naming the field."""
    raw = parse_object(body)
    refuse_unsupported(raw)
    refuse_foreign(raw, "top_logprobs")
    _check_prompt(raw.get("prompt"))
    fields = validate(CompletionRequest, raw)
    _check_best_of(fields)
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


def _check_prompt(prompt: Any) -> None:
    """Faults of the four forms in words that a union's own errors cannot find."""
    if isinstance(prompt, str) or prompt is None:
        return
    if not isinstance(prompt, list):
        raise InvalidRequestError(
            f"prompt is {shown(prompt)}: it must be a string, a list of token ids or a list of those",
            param="prompt",
        )
    if not prompt or [] in prompt:
        raise InvalidRequestError("prompt is an empty list", param="prompt")
    if len({type(item) for item in prompt}) > 1:
        raise InvalidRequestError(
            f"prompt is {shown(prompt)}: its items must all be strings, ids or lists of ids",
            param="prompt",
        )
    if not isinstance(prompt[0], int) and len(prompt) > MAX_PROMPTS:
        raise InvalidRequestError(
            f"prompt has {len(prompt)} entries, but at most {MAX_PROMPTS} are allowed",
            param="prompt",
        )
