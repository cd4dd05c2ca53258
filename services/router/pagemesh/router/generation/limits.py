"""How many tokens a request may generate: in a model's context, and by what its tenant may have."""

from __future__ import annotations

from pagemesh.errors import ContextLengthError, InvalidRequestError
from pagemesh.router.tenants.caller import current_caller


def resolve_max_tokens(
    num_prompt_tokens: int,
    max_model_len: int,
    asked: int | None,
    default: int | None,
    most: int | None = None,
    *,
    prompt_field: str,
    limit_field: str,
) -> int:
    """The request's own limit, else the default cut to the room left (all of it without a default); never more than
    the caller's tenant may have, or than `most`.

    Raises ContextLengthError naming the numbers when prompt and output do not fit, InvalidRequestError as
    `within_cap` does.
    """
    room = max_model_len - num_prompt_tokens
    if room <= 0:
        raise ContextLengthError.beyond(
            max_model_len,
            f"the prompt has {num_prompt_tokens}, and can have at most {max_model_len - 1}",
            prompt_field,
        )
    allowed = within_cap(asked, limit_field, most)
    if allowed is None:
        cap = current_caller().tenant.limits.max_output_tokens
        return min(limit for limit in (default, cap, most, room) if limit is not None)
    if allowed > room:
        raise ContextLengthError.beyond(
            max_model_len,
            f"{limit_field} is {asked}, and behind the prompt's {num_prompt_tokens} there is room for {room}",
            limit_field,
        )
    return allowed


def within_cap(asked: int | None, field: str, most: int | None = None) -> int | None:
    """What a request may have of what it asks for, with no look at the context; None where it asks for nothing.

    Raises InvalidRequestError naming the field where its tenant's requests for too much are refused.
    """
    tenant = current_caller().tenant
    cap = tenant.limits.max_output_tokens
    if asked is None:
        return None
    if cap is not None and asked > cap and tenant.limits.max_output_tokens_policy == "refuse":
        whose = f" of {tenant.name!r}" if tenant.name else ""
        raise InvalidRequestError(
            f"{field} is {asked}, but answers{whose} can have at most {cap} tokens", param=field
        )
    return min(limit for limit in (asked, cap, most) if limit is not None)
