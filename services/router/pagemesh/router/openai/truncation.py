"""Prompts that are cut to a length (`truncate_prompt_tokens`)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Self

from pagemesh.errors import InvalidRequestError
from pagemesh.router.openai.fields import RequestFields


@dataclass(frozen=True, slots=True)
class Truncation:
    """How a prompt is cut."""

    num_tokens: int
    """Most that are kept."""

    keeps_end: bool
    """Whether the last ones are kept, or the first ones."""

    keeps_special: bool = False
    """Whether special tokens that are put around a text stay, and only the text is cut."""

    @classmethod
    def of(cls, fields: RequestFields, max_model_len: int, max_tokens: int | None) -> Self | None:
        """What a request asks for; None when it asks for nothing.

        As in vLLM, -1 stands for all the room that the context and the answer's limit leave, and the last
        tokens are kept unless told. Raises InvalidRequestError for more than there is room for.
        """
        asked = fields.truncate_prompt_tokens
        if asked is None:
            return None
        most = max_model_len - max(1, max_tokens or 1)
        cls._check(asked, max_model_len)
        return cls(max(1, most) if asked == -1 else asked, fields.truncation_side != "right")

    @classmethod
    def of_pooling(cls, asked: int | None, side: str | None, max_model_len: int) -> Self | None:
        """The same where nothing is generated: the first tokens are kept unless told, and special ones always."""
        if asked is None:
            return None
        cls._check(asked, max_model_len)
        return cls(max_model_len if asked == -1 else asked, side == "left", keeps_special=True)

    @staticmethod
    def _check(asked: int, max_model_len: int) -> None:
        if asked > max_model_len or asked == 0:
            raise InvalidRequestError(
                f"truncate_prompt_tokens is {asked}, but must be -1 or between 1 and the model's context of"
                f" {max_model_len} tokens",
                param="truncate_prompt_tokens",
            )

    def may_have_cut(self, token_ids: Sequence[int]) -> bool:
        """Whether these may be what was kept of more."""
        return len(token_ids) >= self.num_tokens

    def cut(self, token_ids: list[int]) -> list[int]:
        """What is kept of a prompt."""
        if len(token_ids) <= self.num_tokens:
            return token_ids
        return token_ids[-self.num_tokens :] if self.keeps_end else token_ids[: self.num_tokens]

    def cut_within(self, token_ids: list[int], text_ids: list[int]) -> list[int]:
        """What is kept of a prompt that is a text with special tokens around it."""
        num_special = len(token_ids) - len(text_ids)
        starts = range(num_special + 1)
        start = next((i for i in starts if token_ids[i : i + len(text_ids)] == text_ids), None)
        if start is None or num_special >= self.num_tokens:
            return self.cut(token_ids)
        kept = replace(self, num_tokens=self.num_tokens - num_special).cut(text_ids)
        return [*token_ids[:start], *kept, *token_ids[start + len(text_ids) :]]
