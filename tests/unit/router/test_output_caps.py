"""How long an answer may be by what its tenant may have."""

from __future__ import annotations

import contextvars
import time
from collections.abc import Callable

import pytest

from pagemesh.errors import ContextLengthError, InvalidRequestError
from pagemesh.router.generation.limits import resolve_max_tokens, within_cap
from pagemesh.router.tenants.allowance import Allowance
from pagemesh.router.tenants.caller import Caller, bind_caller
from pagemesh.router.tenants.tenant import Limits, Tenant

CUT = Tenant("acme", Limits(max_output_tokens=20))
REFUSE = Tenant("acme", Limits(max_output_tokens=20, max_output_tokens_policy="refuse"))
POLICIES = pytest.mark.parametrize("tenant", [CUT, REFUSE], ids=["cut", "refuse"])


def on_behalf_of(tenant: Tenant, call: Callable[[], int | None]) -> int | None:
    def bound() -> int | None:
        bind_caller(Caller(tenant, Allowance(tenant, 1, time.monotonic)))
        return call()

    return contextvars.copy_context().run(bound)


def limit(
    tenant: Tenant, num_prompt_tokens: int, asked: int | None = None, default: int | None = None
) -> int | None:
    return on_behalf_of(
        tenant,
        lambda: resolve_max_tokens(
            num_prompt_tokens,
            100,
            asked,
            default,
            prompt_field="prompt",
            limit_field="max_tokens",
        ),
    )


@POLICIES
def test_an_answer_of_no_given_length_ends_at_the_cap(tenant: Tenant) -> None:
    assert limit(tenant, 40) == 20
    assert limit(tenant, 40, default=50) == 20
    assert limit(tenant, 40, default=16) == 16
    # The context may have less.
    assert limit(tenant, 90) == 10


@POLICIES
def test_what_is_within_the_cap_is_given(tenant: Tenant) -> None:
    assert limit(tenant, 40, asked=20) == 20
    assert limit(tenant, 40, asked=1) == 1
    with pytest.raises(ContextLengthError, match="max_tokens is 20, and behind the prompt's 90"):
        limit(tenant, 90, asked=20)


def test_what_is_beyond_the_cap_is_cut() -> None:
    assert limit(CUT, 40, asked=21) == 20
    # Also what would not fit into the context as it is.
    assert limit(CUT, 40, asked=5000) == 20
    with pytest.raises(ContextLengthError, match="max_tokens is 5000, and behind the prompt's 90"):
        limit(CUT, 90, asked=5000)


def test_what_is_beyond_the_cap_is_refused_by_name() -> None:
    with pytest.raises(InvalidRequestError) as refused:
        limit(REFUSE, 40, asked=21)
    assert refused.value.param == "max_tokens"
    assert refused.value.message == (
        "max_tokens is 21, but answers of 'acme' can have at most 20 tokens"
    )
    nobody = Tenant("", REFUSE.limits)
    with pytest.raises(InvalidRequestError, match="but answers can have at most 20 tokens"):
        limit(nobody, 40, asked=21)


def test_a_prompt_is_cut_to_the_room_beside_what_the_answer_may_have() -> None:
    assert on_behalf_of(CUT, lambda: within_cap(90, "max_tokens")) == 20
    assert on_behalf_of(CUT, lambda: within_cap(None, "max_tokens")) is None
    assert within_cap(90, "max_tokens") == 90
