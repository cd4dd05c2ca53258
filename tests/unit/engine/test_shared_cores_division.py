"""Cores are divided among the workers of a host, and none is held twice, whatever they do in whatever order."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pagemesh.engine.shared_cores import CoreClaim, entitlements, grantable


@pytest.mark.parametrize(
    ("num_cores", "shares_and_wants", "expected"),
    [
        pytest.param(2, [(1, 2), (1, 0)], [2, 0], id="all are lent by one that is idle"),
        pytest.param(2, [(1, 2), (1, 1)], [1, 1], id="each has its own while both compute"),
        pytest.param(8, [(4, 8), (4, 1)], [7, 1], id="what a step cannot use is lent"),
        pytest.param(8, [(2, 8), (2, 8), (4, 0)], [4, 4, 0], id="two borrow alike"),
        pytest.param(5, [(1, 5), (1, 5), (3, 0)], [3, 2, 0], id="an odd core goes to the first"),
        pytest.param(9, [(1, 2), (1, 9), (7, 0)], [2, 7, 0], id="nobody gets more than it wants"),
        pytest.param(2, [(1, 2), (1, 2), (1, 2)], [1, 1, 1], id="one each for more than cores"),
        pytest.param(2, [(1, 2), (1, 1), (1, 0)], [1, 1, 0], id="nothing to borrow for these"),
    ],
)
def test_cores_are_divided(
    num_cores: int, shares_and_wants: list[tuple[int, int]], expected: list[int]
) -> None:
    claims = [CoreClaim(share, wanted, held=0) for share, wanted in shares_and_wants]
    assert entitlements(num_cores, claims) == expected


def test_a_core_is_granted_when_its_borrower_has_left_it() -> None:
    borrower, lender = CoreClaim(1, wanted=2, held=2), CoreClaim(1, wanted=1, held=0)
    assert grantable(2, [borrower, lender], 1) == 0
    assert grantable(2, [borrower, lender], 0) == 1
    assert grantable(2, [borrower._replace(held=1), lender], 1) == 1


def test_where_there_are_more_workers_than_cores_each_has_one_at_once() -> None:
    borrower, lender, idle = (
        CoreClaim(1, wanted, held) for wanted, held in ((2, 2), (1, 0), (0, 0))
    )
    assert grantable(2, [borrower, lender, idle], 1) == 1


Hosts = st.lists(st.integers(1, 4), min_size=1, max_size=5).flatmap(
    lambda shares: st.tuples(st.integers(1, sum(shares) + 3), st.just(shares))
)


@given(Hosts, st.data())
def test_never_are_more_cores_held_than_there_are(
    host: tuple[int, list[int]], data: st.DataObject
) -> None:
    num_cores, shares = host
    claims = [CoreClaim(share, 0, 0) for share in shares]
    actions = st.tuples(st.integers(0, len(shares) - 1), st.integers(-1, num_cores))
    for index, wanted in data.draw(st.lists(actions, max_size=30)):
        if wanted == 0:
            claims[index] = claims[index]._replace(wanted=0, held=0)
        elif wanted > 0:
            claims[index] = claims[index]._replace(wanted=wanted)
        else:
            claims[index] = claims[index]._replace(held=grantable(num_cores, claims, index))
        assert sum(claim.held for claim in claims) <= max(num_cores, sum(shares))
    # When all have looked twice, first those that give back, all have what they are entitled to.
    for _ in range(2):
        for index in range(len(claims)):
            claims[index] = claims[index]._replace(held=grantable(num_cores, claims, index))
    entitled = entitlements(num_cores, claims)
    assert [claim.held for claim in claims] == entitled
    assert all(e >= min(c.wanted, c.share) for e, c in zip(entitled, claims, strict=True))
    num_wanted = sum(claim.wanted for claim in claims)
    assert sum(entitled) >= min(num_cores, num_wanted), "a core idles that somebody wants"
