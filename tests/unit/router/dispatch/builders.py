"""Builders for the tests of queueing."""

from __future__ import annotations

from typing import Any

from pagemesh.router.dispatch.turn import Turn


def make_turn(tenant: str = "a", num_tokens: int = 10, **changes: Any) -> Turn:
    fields = {"weight": 1.0, "priority": 0, "num_seats": 1, "deadline": 1e9, **changes}
    return Turn(tenant, num_tokens=num_tokens, **fields)
