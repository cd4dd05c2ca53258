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
        raise ContextLengthError(
            f"the prompt has {num_prompt_tokens} tokens, but the model's context of {max_model_len} "
            f"tokens leaves room for at most {max_model_len - 1}",
            param=prompt_field,
        )
    if asked is None:
        return room if default is None else min(default, room)
    if asked > room:
        raise ContextLengthError(
            f"{limit_field} is {asked}, but after the prompt's {num_prompt_tokens} tokens the "
            f"model's context of {max_model_len} tokens has room for {room}",
            param=limit_field,
        )
    return asked
