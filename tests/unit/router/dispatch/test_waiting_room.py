"""Bounds on who waits."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from pagemesh.router.dispatch.waiting_room import WaitingRoom


def fill(room: WaitingRoom, tenant: str, weight: float = 1.0) -> int:
    """Take as many places as there are for a tenant; how many these were."""
    num_places = 0
    while room.has_place(tenant, weight):
        room.enter(tenant)
        num_places += 1
    return num_places


def test_who_has_no_name_may_have_all_places() -> None:
    assert fill(WaitingRoom(50), "") == 50


def test_a_tenant_leaves_some_to_the_next() -> None:
    room = WaitingRoom(100)
    assert fill(room, "heavy") == 80
    assert room.has_place("light", 1.0)
    assert fill(room, "second") == 16
    assert fill(room, "third") == 4
    assert not room.has_place("fourth", 1.0)


def test_even_the_last_place_is_somebodys() -> None:
    room = WaitingRoom(1)
    assert fill(room, "a") == 1
    room.leave("a")
    assert room.num_waiting_of("a") == 0
    assert fill(room, "b") == 1


@given(st.lists(st.tuples(st.sampled_from("abcd"), st.booleans()), max_size=200))
def test_there_are_never_more_than_places(moves: list[tuple[str, bool]]) -> None:
    room = WaitingRoom(3)
    inside: list[str] = []
    for tenant, comes in moves:
        if comes and room.has_place(tenant, 1.0):
            room.enter(tenant)
            inside.append(tenant)
        elif not comes and tenant in inside:
            room.leave(tenant)
            inside.remove(tenant)
        assert room.num_waiting == len(inside) <= 3
        assert room.num_waiting_of(tenant) == inside.count(tenant)
