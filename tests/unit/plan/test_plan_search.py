"""The search for the fewest workers, against meshes whose capacity is a sum."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from pagemesh.plan.search import Size, least, search, size_of, trim


class Mesh:
    """Passes from a number of work units on; counts what it was asked."""

    def __init__(self, needed: float, decode: float = 1.0, prefill: float = 0.0) -> None:
        self.needed = needed
        self.units = decode, prefill
        self.asked: list[Size] = []

    def passes(self, size: Size) -> bool:
        self.asked.append(size)
        return size.decode * self.units[0] + size.prefill * self.units[1] >= self.needed


def at_least(number: int, asked: list[int]) -> Callable[[int], bool]:
    def passes(candidate: int) -> bool:
        asked.append(candidate)
        return candidate >= number

    return passes


@pytest.mark.parametrize("start", [1, 2, 7, 64, 200])
@pytest.mark.parametrize("number", [1, 2, 3, 7, 31, 32, 100, 128])
def test_the_least_number_is_found_from_wherever_the_search_begins(number: int, start: int) -> None:
    asked: list[int] = []
    assert least(at_least(number, asked), start, 128) == number
    assert number == 1 or number - 1 in asked
    assert number in asked
    assert len(asked) == len(set(asked)) <= 16


@pytest.mark.parametrize("start", [1, 100])
def test_where_nothing_does_the_most_was_tried(start: int) -> None:
    asked: list[int] = []
    assert least(at_least(101, asked), start, 100) is None
    assert max(asked) == 100


def test_no_more_than_the_most_is_tried() -> None:
    asked: list[int] = []
    assert least(at_least(90, asked), 1, 100) == 90
    assert max(asked) <= 100


@pytest.mark.parametrize(
    ("ratio", "num_decode", "size"),
    [
        (0, 5, Size(5, 0)),
        (0.25, 4, Size(4, 1)),
        (0.25, 5, Size(5, 2)),
        (2, 3, Size(3, 6)),
    ],
)
def test_prefill_workers_belong_to_decode_workers(
    ratio: float, num_decode: int, size: Size
) -> None:
    assert size_of(ratio, num_decode) == size


def test_each_ratio_gets_its_optimum() -> None:
    # A decode worker does one unit, a prefill worker half of one: 10 units are needed.
    mesh = Mesh(10, 1.0, 0.5)
    found = {each.ratio: each.size for each in search((0, 0.5, 1), mesh.passes, 100)}
    assert found == {0: Size(10, 0), 0.5: Size(8, 4), 1: Size(7, 6)}


def test_prefill_workers_that_are_worth_more_make_a_smaller_deployment() -> None:
    mesh = Mesh(12, 1.0, 3.0)
    found = [each.size for each in search((0, 1), mesh.passes, 100)]
    assert found == [Size(12, 0), Size(3, 3)]


def test_a_ratio_that_needs_twice_the_workers_is_given_up() -> None:
    mesh = Mesh(10, 1.0, 0.0)
    (alone, given_up) = search((0, 2), mesh.passes, 1000)
    assert alone.size == Size(10, 0)
    assert (given_up.size, given_up.most) == (None, 20)
    assert max(size.total for size in mesh.asked) <= 20


def test_no_deployment_has_more_workers_than_allowed() -> None:
    mesh = Mesh(100)
    assert [each.size for each in search((0, 1), mesh.passes, 30)] == [None, None]
    assert max(size.total for size in mesh.asked) == 30


def test_workers_of_which_a_round_ratio_has_too_many_go() -> None:
    assert trim(Size(4, 4), lambda size: size.decode >= 3 and size.prefill >= 2) == Size(3, 2)


def test_neither_kind_goes_altogether() -> None:
    assert trim(Size(3, 3), lambda size: True) == Size(1, 1)


def test_near_the_beginning_nothing_far_away_is_tried() -> None:
    asked: list[int] = []
    assert least(at_least(98, asked), 100, 1000) == 98
    assert asked == [100, 99, 97, 98]
