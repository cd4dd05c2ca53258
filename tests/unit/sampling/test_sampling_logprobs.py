from __future__ import annotations

import math

from pagemesh.sampling.logprobs import best_answers


def test_the_most_probable_answers_come_first() -> None:
    assert best_answers([-3.0, -1.0, -2.0, -0.5], 2) == [3, 1]


def test_of_equal_answers_the_earlier_one_wins() -> None:
    assert best_answers([-1.0, -2.0, -1.0, -2.0], 3) == [0, 2, 1]


def test_an_impossible_answer_comes_last() -> None:
    assert best_answers([-math.inf, -900.0], 2) == [1, 0]


def test_no_more_answers_are_given_than_there_are() -> None:
    assert best_answers([-1.0], 4) == [0]
