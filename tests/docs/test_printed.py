"""What is printed is compared with what a document says."""

from __future__ import annotations

import pytest

from tests.docs.printed import differs


@pytest.mark.parametrize(
    ("printed", "said"),
    [
        ("a\nb\n", "a\nb\n"),
        ("a  \n\n", "a\n"),
        ("in /tmp/x1y2 it lies\n", "in /tmp/… it lies\n"),
        ("a\nb\nc\nd\n", "a\n…\nd\n"),
        ("a\nd\n", "a\n…\nd\n"),
    ],
)
def test_equal_texts_and_what_dots_stand_for(printed: str, said: str) -> None:
    assert differs(printed, said, in_shape=False) is None


@pytest.mark.parametrize(
    ("printed", "said"),
    [
        ("a\n", "b\n"),
        ("a\nb\n", "a\n"),
        ("1\n", "2\n"),
        ("a.b\n", "axb\n"),
        ("x\nd\n", "a\n…\nd\n"),
    ],
)
def test_other_texts_differ(printed: str, said: str) -> None:
    fault = differs(printed, said, in_shape=False)
    assert fault is not None
    assert f"printed:\n{printed}" in fault


def test_numbers_and_widths_do_not_matter_in_shape() -> None:
    assert differs("up after  0.7 s, 1,024\n", "up after 12.25 s, 7\n", in_shape=True) is None
    assert differs("down after 0.7 s\n", "up after 0.7 s\n", in_shape=True) is not None


def test_lines_may_come_in_another_order_only_where_that_is_said() -> None:
    assert differs("b\na …\n", "a …\nb\n", in_shape=False) is not None
    assert differs("b\na x\n", "a …\nb\n", in_shape=False, in_order=False) is None
    assert differs("b\na x\nc\n", "a …\nb\n", in_shape=False, in_order=False) is not None
    assert differs("b\nb\n", "a\nb\n", in_shape=False, in_order=False) is not None
