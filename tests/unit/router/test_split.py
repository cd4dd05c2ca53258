"""How requests are divided among models."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from pagemesh.router.split import choose

KEYS = [f"session-{number}".encode() for number in range(4000)]


def test_each_gets_its_share() -> None:
    found = Counter(choose({"a": 0.9, "b": 0.1}, key) for key in KEYS)
    assert found["a"] + found["b"] == len(KEYS)
    assert 0.88 < found["a"] / len(KEYS) < 0.92
    even = Counter(choose({"a": 5, "b": 5, "c": 5, "d": 5}, key) for key in KEYS)
    assert all(900 < number < 1100 for number in even.values())


def test_the_same_key_has_the_same_answer_in_whatever_order() -> None:
    assert all(choose({"a": 1, "b": 3}, key) == choose({"b": 3, "a": 1}, key) for key in KEYS)


weights = st.dictionaries(st.sampled_from("abcdef"), st.floats(1e-3, 1e3), min_size=1, max_size=6)


@given(weights, st.sampled_from(KEYS))
def test_only_what_one_had_moves_when_it_goes(names: dict[str, float], key: bytes) -> None:
    before = choose(names, key)
    for gone in names.keys() - {before}:
        rest = {name: weight for name, weight in names.items() if name != gone}
        assert choose(rest, key) == before


@given(weights, st.sampled_from(KEYS), st.floats(1.0, 100.0))
def test_more_weight_only_brings_keys(names: dict[str, float], key: bytes, more: float) -> None:
    before = choose(names, key)
    assert choose({**names, before: names[before] * more}, key) == before
