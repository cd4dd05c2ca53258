"""The depth at which prompts are hashed, taken from the traffic."""

from __future__ import annotations

import random

import pytest

from pagemesh.router.routing import crowds
from pagemesh.router.routing.candidate import Naming
from pagemesh.router.routing.crowds import Crowds
from tests.unit.router.routing_builders import NAMING


def prompt(*parts: tuple[str, int]) -> dict[Naming, list[bytes]]:
    """Names of the blocks of texts that go on for so many blocks each."""
    names, text = list[bytes](), ""
    for part, num_blocks in parts:
        for index in range(num_blocks):
            text += f"/{part}{index}"
            names.append(text.encode())
    return {NAMING: names}


def group(known: Crowds, *parts: tuple[str, int], num_workers: int = 4) -> bytes:
    return known.places(prompt(*parts), num_workers)[NAMING].group


def test_before_there_was_traffic_the_first_block_counts() -> None:
    assert group(Crowds(), ("template", 2), ("a", 3)) == b"/template0"


def test_a_prompt_without_a_full_block_belongs_to_no_group() -> None:
    assert Crowds().places({}, 4) == {}


def test_conversations_leave_the_crowd_where_they_differ() -> None:
    known = Crowds()
    for number in range(200):
        known.add(prompt(("template", 3), (f"user{number}", 4)), 4)
    assert group(known, ("template", 3), ("new", 4)).endswith(b"template2/new0")
    assert group(known, ("template", 3), ("new", 40)) == group(known, ("template", 3), ("new", 4))
    assert group(known, ("other", 3)) == b"/other0"
    # One that has nothing of its own goes by all that it has.
    assert group(known, ("template", 3)).endswith(b"template2")


def test_what_a_crowd_shares_of_a_prompt_is_counted() -> None:
    known = Crowds()
    for number in range(200):
        known.add(prompt(("template", 3), (f"user{number}", 4)), 4)
    for parts, num_shared in (
        ((("template", 3), ("new", 4)), 3),
        ((("template", 3),), 3),
        ((("template", 2), ("new", 4)), 2),
        ((("other", 3),), 0),
    ):
        assert known.places(prompt(*parts), 4)[NAMING].num_crowd_blocks == num_shared


def test_requests_with_one_system_prompt_meet_and_the_system_prompts_spread() -> None:
    known, draw = Crowds(), random.Random(7)
    apps = [f"app{number}" for number in range(20)]
    for number in range(400):
        known.add(prompt(("template", 1), (draw.choice(apps), 50), (f"user{number}", 4)), 4)
    groups = {app: group(known, ("template", 1), (app, 50), ("new", 4)) for app in apps}
    assert len(set(groups.values())) == 20
    for app, name in groups.items():
        assert name == group(known, ("template", 1), (app, 50), ("another", 9))


def test_a_crowd_that_is_larger_than_a_workers_part_is_divided() -> None:
    for num_workers, name in ((4, b"/large4/new0"), (2, b"/large0")):
        known = Crowds()
        for number in range(400):
            app = "large" if number % 5 < 2 else f"small{number % 20}"
            known.add(prompt((app, 5), (f"user{number}", 2)), num_workers)
        assert group(known, ("small2", 5), ("new", 2), num_workers=num_workers) == b"/small20"
        assert group(known, ("large", 5), ("new", 2), num_workers=num_workers).endswith(name)


def test_what_was_long_ago_counts_less() -> None:
    known = Crowds()
    for number in range(1000):
        known.add(prompt(("old", 3), (f"user{number}", 1)), 4)
    assert group(known, ("old", 3), ("new", 1)).endswith(b"new0")
    for number in range(6000):
        known.add(prompt((f"user{number}", 2)), 4)
    assert group(known, ("old", 3), ("new", 1)) == b"/old0"


def test_what_was_counted_before_weighs_half() -> None:
    known = Crowds()
    for number in range(crowds.HALF_LIFE):
        known.add(prompt(("old" if number < 900 else f"{number}", 3)), 4)
    for number in range(500):
        known.add(prompt((f"user{number}", 2)), 4)
    # 450 of the last 1,012: more than a quarter, and not half.
    assert known.places(prompt(("old", 3)), 4)[NAMING].num_crowd_blocks == 3
    assert known.places(prompt(("old", 3)), 2)[NAMING].num_crowd_blocks == 0


def test_memory_is_bounded_whatever_comes() -> None:
    known = Crowds()
    for number in range(5000):
        known.add(prompt(("template", 40), (f"user{number}", 3)), 4)
    assert len(known._seen) + len(known._seen_before) <= 14 * 2 * crowds.HALF_LIFE


def test_deep_crowds_are_known_soon_and_left_at_the_first_own_block() -> None:
    known = Crowds()
    for number in range(160):
        known.add(prompt(("system", 250), (f"user{number}", 1 + number % 40)), 4)
    for num_blocks in (1, 2, 30, 1000):
        name = group(known, ("system", 250), ("new", num_blocks))
        assert name.endswith(b"/system249/new0")


@pytest.mark.parametrize(
    ("num_shared", "num_looked_at"), [(0, 1), (1, 2), (2, 3), (100, 15), (5000, 26), (6250, 19)]
)
def test_few_blocks_of_long_prompts_are_looked_at(num_shared: int, num_looked_at: int) -> None:
    seen: list[int] = []

    def is_crowd(index: int) -> bool:
        seen.append(index)
        return index < num_shared

    assert crowds._end_of_crowd(6250, is_crowd) == num_shared
    assert len(seen) == num_looked_at
