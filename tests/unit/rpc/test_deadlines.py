"""The shorter of two limits."""

from __future__ import annotations

import pytest

from pagemesh.errors import DeadlineError
from pagemesh.rpc.deadlines import time_left


class Caller:
    def __init__(self, remaining: float | None) -> None:
        self._remaining = remaining

    def time_remaining(self) -> float | None:
        return self._remaining


@pytest.mark.parametrize(
    ("own_limit", "remaining", "expected"),
    [
        pytest.param(5.0, None, 5.0, id="caller waits for ever"),
        pytest.param(5.0, 2.0, 2.0, id="caller has less"),
        pytest.param(5.0, 9.0, 5.0, id="caller has more"),
    ],
)
def test_the_shorter_limit_counts(
    own_limit: float, remaining: float | None, expected: float
) -> None:
    assert time_left(own_limit, Caller(remaining)) == expected


def test_no_call_is_made_for_a_caller_that_gave_up() -> None:
    with pytest.raises(DeadlineError, match="deadline is over"):
        time_left(5.0, Caller(0.0))
