"""How many tokens a request may generate in a model's context."""

from __future__ import annotations

from pagemesh.errors import ContextLengthError


def resolve_max_tokens(
    num_prompt_tokens: int,
    max_model_len: int,
    asked: int | None,
    default: int | None,
    *,
    prompt_field: str,
    limit_field: str,
) -> int:
    """The request's own limit, else the default cut to the room left (all of it without a default).

    Raises ContextLengthError naming the numbers when prompt and output do not fit.
    """
    room = max_model_len - num_prompt_tokens
    if room <= 0:
        raise ContextLengthError.beyond(
            max_model_len,
            f"the prompt has {num_prompt_tokens}, and can have at most {max_model_len - 1}",
            prompt_field,
        )
    if asked is None:
        return room if default is None else min(default, room)
    if asked > room:
        raise ContextLengthError.beyond(
            max_model_len,
            f"{limit_field} is {asked}, and behind the prompt's {num_prompt_tokens} there is room for {room}",
            limit_field,
        )
    return asked
