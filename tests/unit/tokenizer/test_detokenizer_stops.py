from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pagemesh.tokenizer.detokenizer import StopMatcher


def run(stops: Sequence[str], pieces: Sequence[str]) -> tuple[list[str], bool]:
    """What came out piece by piece, and whether a stop string was found."""
    matcher = StopMatcher(stops)
    texts: list[str] = []
    for piece in pieces:
        found = matcher.push(piece)
        texts.append(found.text)
        if found.stop is not None:
            assert found.stop in stops
            return texts, True
    return [*texts, matcher.flush()], False


def test_without_stop_strings_nothing_is_held_back() -> None:
    assert run([], ["ab", "c"]) == (["ab", "c", ""], False)


def test_text_is_cut_before_the_stop_string() -> None:
    assert run(["END"], ["one END two"]) == (["one "], True)


def test_a_possible_beginning_is_held_back_until_it_is_decided() -> None:
    assert run(["END"], ["aE", "N", "x", "EN", "D"]) == (["a", "", "ENx", "", ""], True)


def test_what_is_held_back_comes_out_at_the_end() -> None:
    assert run(["END"], ["aEN"]) == (["a", "EN"], False)


def test_a_failed_match_may_contain_the_beginning_of_the_next() -> None:
    assert run(["aab"], ["aa", "ab", "c"]) == (["", "a"], True)


def test_the_stop_string_that_is_complete_first_wins() -> None:
    assert run(["abcd", "bc"], ["xabcd"]) == (["xa"], True)


def test_of_two_that_end_together_the_longer_one_is_cut() -> None:
    assert run(["c", "abc"], ["xabc"]) == (["x"], True)


def test_the_stop_string_that_was_found_is_named() -> None:
    assert StopMatcher(["c", "abc", "d"]).push("xabc").stop == "abc"
    assert StopMatcher(["c", "abc", "d"]).push("xad").stop == "d"
    assert StopMatcher(["c", "abc", "d"]).push("xa").stop is None


@pytest.mark.parametrize("stop", ["\n\n", "🚀", "a"])
def test_any_character_can_stop(stop: str) -> None:
    assert run([stop], [f"x{stop}y"]) == (["x"], True)


TEXT = st.text("ab", max_size=20)


@given(st.lists(st.text("ab", min_size=1, max_size=5), min_size=1, max_size=4), TEXT, st.data())
def test_the_result_does_not_depend_on_the_pieces(
    stops: list[str], text: str, data: st.DataObject
) -> None:
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=6)))
    pieces = [text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True)]
    texts, stopped = run(stops, pieces)
    ends = [end for end in range(len(text) + 1) if text[:end].endswith(tuple(stops))]
    assert stopped == bool(ends)
    if ends:
        first = text[: ends[0]]
        longest = max(len(stop) for stop in stops if first.endswith(stop))
        assert "".join(texts) == first[: len(first) - longest]
    else:
        assert "".join(texts) == text
