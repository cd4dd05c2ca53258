"""The judge of the soak: what it lets pass, and what it does not."""

from __future__ import annotations

import pytest

from pagemesh.v1 import types_pb2
from tests.soak.verdict import has_run_out_of_time, what_is_wrong
from tests.support.workers import Received

ANSWER = [5, 6, 7]
LENGTH = types_pb2.FINISH_REASON_LENGTH
CANCELLED = types_pb2.FINISH_REASON_CANCELLED
ERROR = types_pb2.FINISH_REASON_ERROR
LATE = types_pb2.Error(code="DEADLINE_EXCEEDED", message="too late")
BROKEN = types_pb2.Error(code="INTERNAL", message="broken")


@pytest.mark.parametrize(
    ("received", "may_end_early"),
    [
        pytest.param(Received([5, 6, 7], LENGTH), False, id="all of it"),
        pytest.param(Received([5, 6, 7], LENGTH), True, id="before it was cancelled"),
        pytest.param(Received([5], CANCELLED), True, id="cancelled"),
        pytest.param(Received([], CANCELLED), True, id="cancelled before a token"),
        pytest.param(Received([5, 6], ERROR, LATE), True, id="a short deadline"),
        pytest.param(Received([5, 6], ERROR, LATE), False, id="a deadline"),
    ],
)
def test_right_tokens_pass(received: Received, may_end_early: bool) -> None:
    assert what_is_wrong(received, ANSWER, may_end_early=may_end_early) is None


@pytest.mark.parametrize(
    ("received", "may_end_early", "fault"),
    [
        pytest.param(Received([5, 6, 8], LENGTH), False, "[5, 6, 8], not [5, 6, 7]", id="token"),
        pytest.param(Received([5, 6], LENGTH), False, "[5, 6], not [5, 6, 7]", id="too few"),
        pytest.param(
            Received([5, 6], LENGTH), True, "[5, 6], not [5, 6, 7]", id="ends as if whole"
        ),
        pytest.param(Received([5], CANCELLED), False, "[5], not [5, 6, 7]", id="nobody cancelled"),
        pytest.param(Received([6], CANCELLED), True, "[6], not [5, 6, 7]", id="cancelled"),
        pytest.param(
            Received([5, 6, 7, 8], CANCELLED), True, "[5, 6, 7, 8], not [5, 6, 7]", id="too many"
        ),
        pytest.param(
            Received([5, 9], ERROR, LATE), True, "[5, 9], not [5, 6, 7]", id="short deadline"
        ),
        pytest.param(Received([9], ERROR, LATE), False, "[9], not [5, 6, 7]", id="deadline"),
        pytest.param(Received([5], ERROR, BROKEN), True, "broken", id="error"),
    ],
)
def test_everything_else_is_wrong(received: Received, may_end_early: bool, fault: str) -> None:
    assert what_is_wrong(received, ANSWER, may_end_early=may_end_early) == fault


def test_only_a_deadline_is_a_lack_of_time() -> None:
    assert has_run_out_of_time(Received([5], ERROR, LATE))
    assert not has_run_out_of_time(Received([5], ERROR, BROKEN))
    assert not has_run_out_of_time(Received([5, 6, 7], LENGTH))
