"""The matrix and its judge: what they let pass, and what they do not."""

from __future__ import annotations

import pytest

from tests.chaos.asking import Outcome
from tests.chaos.faults import FAULTS
from tests.chaos.matrix import EXPECTED, EXPECTED_IN, IN_TESTS, ROWS, SENSELESS, Cell, Seen, cells
from tests.chaos.phases import PHASES
from tests.chaos.trial import judge

ANSWER = Outcome(200, "a b c", 3, "length", None, is_done=True)
WHOLE = Cell("decode worker", "kill -9", "decoding")
ERROR = Cell("router", "kill -9", "decoding")
GONE = Cell("client", "kill -9", "decoding")


def test_the_tests_play_each_row_fault_and_phase() -> None:
    assert {cell.row for cell in IN_TESTS} == {row.name for row in ROWS}
    assert {cell.fault for cell in IN_TESTS} == set(FAULTS)
    assert {cell.phase for cell in IN_TESTS} == set(PHASES)
    assert set(IN_TESTS) <= set(cells())


def test_every_field_is_a_cell_or_has_a_reason_why_not() -> None:
    fields = {(row.name, fault) for row in ROWS for fault in FAULTS}
    assert {(cell.row, cell.fault) for cell in cells()} == fields - set(SENSELESS)
    assert set(SENSELESS) <= fields
    assert set(EXPECTED) <= fields - set(SENSELESS)
    assert set(EXPECTED_IN) <= set(cells())


@pytest.mark.parametrize(
    ("cell", "seen", "outcome"),
    [
        pytest.param(WHOLE, Seen.WHOLE, ANSWER, id="whole"),
        pytest.param(ERROR, Seen.ERROR, Outcome(200, "a b", 2, error="lost"), id="beginning"),
        pytest.param(ERROR, Seen.ERROR, Outcome(503, error="lost"), id="refused"),
        pytest.param(GONE, Seen.GONE, Outcome(200, "a b", 2), id="gone"),
    ],
)
def test_what_was_expected_passes(cell: Cell, seen: Seen, outcome: Outcome) -> None:
    assert judge(cell, seen, outcome, ANSWER) == []


@pytest.mark.parametrize(
    ("cell", "seen", "outcome", "complaint"),
    [
        pytest.param(
            WHOLE,
            Seen.WHOLE,
            Outcome(200, "a b d", 3, "length", None, is_done=True),
            "a wrong answer",
            id="another text",
        ),
        pytest.param(
            WHOLE,
            Seen.WHOLE,
            Outcome(200, "a b c", 2, "length", None, is_done=True),
            "a wrong answer",
            id="a token less",
        ),
        pytest.param(
            WHOLE, Seen.ERROR, Outcome(503, error="lost"), "error, not whole", id="an error"
        ),
        pytest.param(WHOLE, "hung", Outcome(200, "a"), "hung, not whole", id="hung"),
        pytest.param(
            ERROR, Seen.ERROR, Outcome(200, "a d", 2, error="lost"), "no beginning", id="a lie"
        ),
        pytest.param(ERROR, Seen.ERROR, Outcome(200, "a b", 2), "without a word", id="silence"),
        pytest.param(ERROR, Seen.WHOLE, ANSWER, "whole, not error", id="as if nothing had been"),
    ],
)
def test_everything_else_is_wrong(cell: Cell, seen: str, outcome: Outcome, complaint: str) -> None:
    assert any(complaint in sentence for sentence in judge(cell, seen, outcome, ANSWER))


def test_a_stream_without_an_end_is_not_whole() -> None:
    outcome = Outcome()
    outcome.take(1.0, "asked", "")
    outcome.take(1.1, "status", 200)
    outcome.take(1.5, "data", '{"choices": [{"text": "a", "finish_reason": "length"}]}')
    assert not outcome.is_whole
    outcome.take(2.5, "end", "")
    assert outcome.error == "the stream broke off"
    assert outcome.longest_pause() == pytest.approx(0.5)
