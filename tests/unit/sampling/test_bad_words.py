from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from pagemesh.sampling.logits_rules import BadWords

sequences = st.lists(st.integers(0, 2), max_size=7)
words = st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=4), max_size=5)


def plain_forbidden(bad_words: list[list[int]], output: list[int]) -> set[int]:
    """The definition: a token is forbidden when some sequence would then end the output."""
    return {
        word[-1]
        for word in bad_words
        if len(word) <= len(output) + 1 and output[len(output) - len(word) + 1 :] == word[:-1]
    }


def test_a_single_token_is_always_forbidden() -> None:
    bad_words = BadWords([[5], [7], [5]], [])
    assert bad_words.forbidden_ids == (5, 7)
    bad_words.add(5)
    assert bad_words.forbidden_ids == (5, 7)


def test_a_sequence_forbids_its_last_token_behind_the_others() -> None:
    bad_words = BadWords([[1, 2, 3]], [])
    seen = [bad_words.forbidden_ids]
    for token_id in (1, 2, 2, 1, 2):
        bad_words.add(token_id)
        seen.append(bad_words.forbidden_ids)
    assert seen == [(), (), (3,), (), (), (3,)]


def test_an_output_from_elsewhere_counts() -> None:
    assert BadWords([[1, 2, 3]], [9, 1, 2]).forbidden_ids == (3,)
    assert BadWords([[1, 2, 3]], [2]).forbidden_ids == ()


@given(words, sequences, sequences)
def test_forbidden_tokens_are_those_of_the_definition(
    bad_words: list[list[int]], resumed: list[int], added: list[int]
) -> None:
    known = BadWords(bad_words, resumed)
    output = list(resumed)
    for token_id in added:
        assert set(known.forbidden_ids) == plain_forbidden(bad_words, output)
        known.add(token_id)
        output.append(token_id)
    assert set(known.forbidden_ids) == plain_forbidden(bad_words, output)
