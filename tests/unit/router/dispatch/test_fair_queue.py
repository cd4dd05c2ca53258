"""Who goes first, and that a heavy tenant waits behind itself alone."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, rule

from pagemesh.router.dispatch.fair_queue import FairQueue
from pagemesh.router.dispatch.turn import Turn
from tests.unit.router.dispatch.builders import make_turn


def pushed(*turns: Turn) -> FairQueue:
    queue = FairQueue()
    for turn in turns:
        queue.push(turn)
    return queue


def order_of(queue: FairQueue) -> list[str]:
    return [queue.pop().tenant for _ in range(len(queue))]


def test_requests_of_one_tenant_go_in_order_of_arrival() -> None:
    turns = [make_turn(num_tokens=size) for size in (5, 1, 9)]
    queue = pushed(*turns)
    assert [queue.pop() for _ in turns] == turns


def test_who_comes_late_does_not_wait_for_a_heavy_tenants_queue() -> None:
    queue = pushed(*(make_turn("heavy") for _ in range(100)))
    for _ in range(30):
        queue.pop()
    queue.push(make_turn("light"))
    assert order_of(queue)[:2] == ["light", "heavy"]


def test_tenants_take_turns_by_tokens_and_not_by_requests() -> None:
    large = [make_turn("large", 40) for _ in range(3)]
    small = [make_turn("small", 10) for _ in range(12)]
    assert order_of(pushed(*large, *small)) == ["large", *["small"] * 4] * 3


def test_twice_the_weight_is_twice_the_part() -> None:
    queue = pushed(
        *(make_turn("double", weight=2.0) for _ in range(20)), *(make_turn("b") for _ in range(20))
    )
    assert order_of(queue)[:18].count("double") == 12


def test_nobody_saves_up_while_it_wants_nothing() -> None:
    queue = pushed(*(make_turn("a") for _ in range(50)))
    for _ in range(20):
        queue.pop()
    for _ in range(20):
        queue.push(make_turn("idle before"))
    assert order_of(queue)[:10].count("a") == 5


def test_what_was_not_used_is_given_back() -> None:
    queue = pushed(make_turn("a", 300), *(make_turn(tenant, 100) for tenant in "aaabbb"))
    first = queue.pop()
    assert first.tenant == "a"
    # It took 10 of 300; otherwise all of the other's would go first.
    queue.charge(first, -290)
    assert order_of(queue) == ["b", "a", "b", "a", "b", "a"]


def test_what_ran_before_the_queue_was_empty_counts_no_more() -> None:
    queue = pushed(make_turn("a", 100))
    before = queue.pop()
    queue.push(make_turn("b"))
    queue.push(make_turn("a"))
    queue.charge(before, -1000)
    assert order_of(queue) == ["b", "a"]


@pytest.mark.parametrize(
    ("priorities", "expected"),
    [
        pytest.param([("a", 0), ("b", 1), ("a", 0)], ["a", "a", "b"], id="behind everybody"),
        pytest.param([("a", 1), ("b", 0), ("c", 2)], ["b", "a", "c"], id="level by level"),
        pytest.param([("a", 0), ("b", -9), ("b", -9)], ["a", "b", "b"], id="not before others"),
    ],
)
def test_priorities_between_tenants(priorities: list[tuple[str, int]], expected: list[str]) -> None:
    assert order_of(pushed(*(make_turn(t, priority=p) for t, p in priorities))) == expected


def test_priorities_within_a_tenant() -> None:
    turns = [make_turn(priority=priority) for priority in (0, 3, -2, 0, -5)]
    queue = pushed(*turns)
    assert [queue.pop().priority for _ in turns] == [-5, -2, 0, 0, 3]


def test_a_request_that_is_not_waited_for_frees_its_place() -> None:
    turns = [make_turn(), make_turn("b"), make_turn()]
    queue = pushed(*turns)
    assert queue.remove(turns[0])
    assert not queue.remove(turns[0])
    assert [queue.pop() for _ in range(2)] == [turns[1], turns[2]]
    assert not queue.remove(turns[1])


def test_tokens_ahead_are_those_of_the_same_tenant_that_go_first() -> None:
    first, urgent, other = (
        make_turn(num_tokens=7),
        make_turn(num_tokens=5, priority=-1),
        make_turn("b", 99),
    )
    queue = pushed(first, urgent, other)
    assert queue.num_tokens_before(make_turn()) == 12
    assert queue.num_tokens_before(make_turn(priority=-1)) == 5
    assert queue.num_tokens_before(first) == 5
    assert queue.num_tokens_before(make_turn(priority=4)) == 12
    assert queue.num_tokens_before(make_turn("c")) == 0


def test_a_tenants_queue_is_gone_when_it_has_had_its_part_of_what_goes_out() -> None:
    queue = pushed(*(make_turn("a", 30) for _ in range(4)), make_turn("b", 10, weight=3.0))
    assert queue.num_tokens_until_gone("a") == 130
    assert queue.num_tokens_until_gone("b") == pytest.approx(10 * 4 / 3)
    assert queue.num_tokens_until_gone("c") == 0


@given(st.lists(st.tuples(st.sampled_from("abc"), st.integers(1, 50)), min_size=20, max_size=120))
def test_tenants_that_have_something_to_wait_for_get_the_same(
    wanted: list[tuple[str, int]],
) -> None:
    """Whatever they ask for, two that wait all the time never differ by more than a request of each."""
    queue = pushed(*(make_turn(tenant, size) for tenant, size in wanted))
    got = dict.fromkeys("abc", 0)
    waiting = {tenant: sum(t == tenant for t, _ in wanted) for tenant in "abc"}
    while queue:
        turn = queue.pop()
        got[turn.tenant] += turn.num_tokens
        waiting[turn.tenant] -= 1
        still = [got[tenant] for tenant in "abc" if waiting[tenant]]
        assert max(still, default=0) - min(still, default=0) <= 2 * 50


class Queueing(RuleBasedStateMachine):
    """Pushes, pops, removals and corrections in any order, against a plain list."""

    waiting = Bundle("waiting")
    taken = Bundle("taken")

    def __init__(self) -> None:
        super().__init__()
        self.queue = FairQueue()
        self.model: list[Turn] = []
        self.passed: dict[int, int] = {}

    @rule(
        target=waiting,
        tenant=st.sampled_from(["a", "b", "c", ""]),
        num_tokens=st.integers(1, 100),
        priority=st.integers(-2, 2),
        weight=st.sampled_from([0.5, 1.0, 4.0]),
    )
    def push(self, tenant: str, num_tokens: int, priority: int, weight: float) -> Turn:
        turn = make_turn(tenant, num_tokens, priority=priority, weight=weight)
        self.queue.push(turn)
        self.model.append(turn)
        return turn

    @rule(turn=consumes(waiting))
    def remove(self, turn: Turn) -> None:
        assert self.queue.remove(turn) == (turn in self.model)
        if turn in self.model:
            self.model.remove(turn)

    @rule(target=taken)
    def pop(self) -> Turn | None:
        if not self.model:
            return None
        turn = self.queue.pop()
        assert turn.level == min(each.level for each in self.model)
        mine = [each for each in self.model if each.tenant == turn.tenant]
        assert turn is min(mine, key=lambda each: (each.level, each.priority, each.number))
        self.model.remove(turn)
        return turn

    @rule(turn=consumes(taken), num_tokens=st.integers(-100, 100))
    def charge(self, turn: Turn | None, num_tokens: int) -> None:
        if turn is not None:
            self.queue.charge(turn, num_tokens)

    @invariant()
    def everybody_is_counted(self) -> None:
        assert len(self.queue) == len(self.model)
        assert sorted(t.number for t in self.queue.turns()) == sorted(t.number for t in self.model)
        for tenant in ("a", "b", "c", ""):
            mine = sum(t.num_tokens for t in self.model if t.tenant == tenant)
            assert self.queue.num_tokens_until_gone(tenant) >= mine
            assert self.queue.num_tokens_before(make_turn(tenant, priority=9)) == mine


TestQueueing = Queueing.TestCase
