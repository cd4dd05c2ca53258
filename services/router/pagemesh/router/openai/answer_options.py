"""What a request wants to be told besides the text of its answer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

from pagemesh.router.openai.fields import RequestFields
from pagemesh.router.openai.logprobs import TokenNames
from pagemesh.tokenizer.tokenizer import Tokenizer


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
    def of(cls, fields: RequestFields, tokenizer: Tokenizer) -> Self:
        """Those of a request to a model with this tokenizer."""
        return cls(
            TokenNames(tokenizer.token_bytes, bool(fields.return_tokens_as_token_ids)),
            fields.num_logprobs is not None,
            fields.include_usage,
            fields.has_continuous_usage,
            bool(fields.return_token_ids),
        )
