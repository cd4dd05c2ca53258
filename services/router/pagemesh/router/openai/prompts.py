"""Prompts in the four forms that OpenAI's API has: a string, token ids, or a list of either."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field

from pagemesh.errors import InvalidRequestError
from pagemesh.router.openai.fields import TokenId, shown

# Without fail_fast, each of a million ids would be reported as not being a string.
Prompts = (
    str
    | Annotated[list[str], Field(fail_fast=True)]
    | Annotated[list[TokenId], Field(fail_fast=True)]
    | Annotated[list[Annotated[list[TokenId], Field(fail_fast=True)]], Field(fail_fast=True)]
)


def list_prompts(value: Prompts) -> list[str | list[int]]:
    """Every prompt, as text or token ids."""
    if isinstance(value, str):
        return [value]
    # All items are alike; a prompt of many ids is not gone through once more.
    if isinstance(value[0], int):
        return [value]
    return list(value)


def check_prompts(field: str, value: Any, max_prompts: int) -> None:
    """Faults of the four forms in words that a union's own errors cannot find."""
    if isinstance(value, str) or value is None:
        return
    if not isinstance(value, list):
        raise InvalidRequestError(
            f"{field} is {shown(value)}: it must be a string, a list of token ids or a list of those",
            param=field,
        )
    kinds = set(map(type, value))
    if not value or (list in kinds and [] in value):
        raise InvalidRequestError(f"{field} is an empty list", param=field)
    if len(kinds) > 1:
        raise InvalidRequestError(
            f"{field} is {shown(value)}: its items must all be strings, ids or lists of ids",
            param=field,
        )
    if not isinstance(value[0], int) and len(value) > max_prompts:
        raise InvalidRequestError(
            f"{field} has {len(value)} entries, but at most {max_prompts} are allowed",
            param=field,
        )
