"""Whom a kvstore remembers besides its members, and for how long."""

from __future__ import annotations

import pytest

from pagemesh.errors import FailedPreconditionError
from pagemesh.kvstore.known_peers import (
    DEPARTED_SECONDS,
    MAX_REMEMBERED,
    REFUSED_SECONDS,
    KnownPeers,
)
from tests.fakes.clock import FakeClock
from tests.unit.kvstore.builders import make_worker

REFUSAL = FailedPreconditionError("it does not fit", reason="MODEL_MISMATCH")


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def known_peers(clock: FakeClock) -> KnownPeers:
    return KnownPeers(clock)


def test_a_watcher_is_known_as_long_as_it_watches(known_peers: KnownPeers) -> None:
    with (
        known_peers.watching("10.0.0.1:7100", "ipv4:10.0.0.1:5"),
        known_peers.watching("10.0.0.1:7100", "ipv4:10.0.0.1:6"),
        known_peers.watching("", "ipv4:10.0.0.2:6"),
    ):
        assert known_peers.watchers() == ["10.0.0.1:7100"]
    assert known_peers.watchers() == []


@pytest.mark.parametrize(
    ("watcher", "peer", "expected"),
    [
        ("0.0.0.0:7100", "ipv4:10.0.0.7:41234", ["10.0.0.7:7100"]),
        ("[::]:7100", "ipv6:%5Bfd00::7%5D:41234", ["[fd00::7]:7100"]),
        ("0.0.0.0:7100", "unix:/tmp/socket", ["0.0.0.0:7100"]),
        ("router.example:7100", "ipv4:10.0.0.7:41234", ["router.example:7100"]),
        ("x" * 300 + ":1", "ipv4:10.0.0.7:41234", []),
    ],
)
def test_a_watcher_that_listens_everywhere_is_where_its_call_comes_from(
    known_peers: KnownPeers, watcher: str, peer: str, expected: list[str]
) -> None:
    with known_peers.watching(watcher, peer):
        assert known_peers.watchers() == expected


def test_a_refusal_counts_until_the_worker_no_longer_asks(
    known_peers: KnownPeers, clock: FakeClock
) -> None:
    known_peers.refuse(make_worker("decode-1"), REFUSAL)
    clock.advance(REFUSED_SECONDS)
    (refused,) = known_peers.refused()
    assert (refused.info.worker_id, refused.reason) == ("decode-1", "MODEL_MISMATCH")
    clock.advance(1)
    assert known_peers.refused() == []


def test_two_of_one_name_are_told_apart_by_their_addresses(known_peers: KnownPeers) -> None:
    known_peers.refuse(make_worker("decode-1", address="127.0.0.1:1"), REFUSAL)
    known_peers.refuse(make_worker("decode-1", address="127.0.0.1:2"), REFUSAL)
    known_peers.admit(make_worker("decode-1", address="127.0.0.1:2"))
    assert [refused.info.address for refused in known_peers.refused()] == ["127.0.0.1:1"]


def test_who_left_is_missed_for_a_while_unless_it_is_back(
    known_peers: KnownPeers, clock: FakeClock
) -> None:
    for worker_id in ("decode-1", "decode-2"):
        known_peers.depart(make_worker(worker_id))
    known_peers.admit(make_worker("decode-1", epoch=2))
    clock.advance(DEPARTED_SECONDS)
    assert [departed.info.worker_id for departed in known_peers.departed()] == ["decode-2"]
    clock.advance(1)
    assert known_peers.departed() == []


def test_so_many_are_remembered_and_no_more(known_peers: KnownPeers) -> None:
    for number in range(MAX_REMEMBERED + 1):
        known_peers.refuse(make_worker(f"decode-{number}"), REFUSAL)
        known_peers.depart(make_worker(f"decode-{number}"))
    assert len(known_peers.refused()) == len(known_peers.departed()) == MAX_REMEMBERED
    assert known_peers.departed()[0].info.worker_id == "decode-1"


def test_what_is_absurdly_large_is_not_kept(known_peers: KnownPeers) -> None:
    known_peers.refuse(make_worker("x" * 100_000), REFUSAL)
    assert known_peers.refused() == []
