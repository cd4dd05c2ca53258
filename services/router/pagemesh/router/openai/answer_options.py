"""What a request wants to be told besides the text of its answer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

from pagemesh.router.openai.fields import RequestFields
from pagemesh.router.openai.logprobs import TokenNames
from pagemesh.router.served_model import ServedModel


@dataclass(frozen=True, slots=True)
class AnswerOptions:
    """The same for all of its choices."""

    tokens: TokenNames
    """How tokens are written where log probabilities are."""

    has_logprobs: bool = False
    """Whether there are log probabilities."""

    include_usage: bool = False
    """Whether a stream ends with the token counts."""

    has_continuous_usage: bool = False
    """Whether every chunk has those so far."""

    has_token_ids: bool = False
    """Whether the ids of prompts and answers are given."""

    @classmethod
    def of(cls, fields: RequestFields, model: ServedModel) -> Self:
        """Those of a request to a model."""
        as_ids = fields.return_tokens_as_token_ids
        return cls(
            TokenNames(
                model.tokenizer.token_bytes,
                model.api.return_tokens_as_token_ids if as_ids is None else as_ids,
            ),
            fields.num_logprobs is not None,
            fields.include_usage or model.api.enable_force_include_usage,
            fields.has_continuous_usage,
            bool(fields.return_token_ids),
        )
