"""What a router knows of the workers."""

from __future__ import annotations

import pytest
import structlog.testing

from pagemesh.membership.roster import MemberChange, Roster, WorkerState
from pagemesh.v1 import types_pb2
from tests.unit.kvstore.builders import make_worker

Heard = list[tuple[MemberChange, str]]


def listen(roster: Roster) -> Heard:
    """Changes from now on, those for the known workers included."""
    heard: Heard = []
    roster.subscribe(lambda change, worker: heard.append((change, worker.worker_id)))
    return heard


def live(roster: Roster) -> dict[str, bool]:
    return {worker.worker_id: worker.live for worker in roster.workers()}


def test_a_worker_starts_live_and_without_load() -> None:
    roster = Roster()
    roster.join(make_worker("a", address="127.0.0.1:5"))
    (worker,) = roster.workers()
    assert worker == WorkerState(
        make_worker("a", address="127.0.0.1:5"), types_pb2.WorkerLoad(), live=True
    )
    assert worker.role == types_pb2.WORKER_ROLE_DECODE
    assert worker.address == "127.0.0.1:5"


def test_loads_belong_to_their_worker_and_unknown_ones_to_nobody() -> None:
    roster = Roster()
    roster.join(make_worker("a"))
    roster.join(make_worker("b"))
    roster.report_load("b", types_pb2.WorkerLoad(running_request_count=3))
    roster.report_load("c", types_pb2.WorkerLoad(running_request_count=9))
    assert [w.load.running_request_count for w in roster.workers()] == [0, 3]


def test_a_later_listener_hears_of_the_present_workers_first() -> None:
    roster = Roster()
    roster.join(make_worker("a"))
    heard = listen(roster)
    roster.join(make_worker("b"))
    roster.leave("a")
    roster.leave("never-there")
    assert heard == [
        (MemberChange.JOINED, "a"),
        (MemberChange.JOINED, "b"),
        (MemberChange.LEFT, "a"),
    ]


def test_hearing_of_the_same_incarnation_again_keeps_its_load_and_is_no_change() -> None:
    roster = Roster()
    roster.join(make_worker("a"))
    roster.report_load("a", types_pb2.WorkerLoad(running_request_count=3))
    heard = listen(roster)
    roster.doubt_all()
    roster.join(make_worker("a"))
    assert heard == [(MemberChange.JOINED, "a")]
    assert roster.workers()[0].load.running_request_count == 3
    assert live(roster) == {"a": True}


def test_a_newer_incarnation_is_one_leaving_and_another_joining() -> None:
    roster = Roster()
    roster.join(make_worker("a", epoch=1))
    roster.report_load("a", types_pb2.WorkerLoad(running_request_count=3))
    heard = listen(roster)
    roster.join(make_worker("a", epoch=2))
    assert heard[1:] == [(MemberChange.LEFT, "a"), (MemberChange.JOINED, "a")]
    assert roster.workers()[0].load == types_pb2.WorkerLoad()


def test_doubted_workers_stay_until_they_are_forgotten() -> None:
    roster = Roster()
    roster.join(make_worker("a"))
    roster.join(make_worker("b"))
    heard = listen(roster)
    roster.doubt_all()
    assert live(roster) == {"a": False, "b": False}
    roster.join(make_worker("b"))
    roster.forget_doubtful()
    assert live(roster) == {"b": True}
    assert heard[2:] == [(MemberChange.LEFT, "a")]


def test_confirming_ends_all_doubt() -> None:
    roster = Roster()
    roster.join(make_worker("a"))
    roster.doubt_all()
    roster.confirm_all()
    roster.forget_doubtful()
    assert live(roster) == {"a": True}


def test_a_listener_that_fails_is_logged_and_spares_the_others() -> None:
    roster = Roster()

    def fail(change: MemberChange, worker: WorkerState) -> None:
        raise ValueError("a bug")

    roster.subscribe(fail)
    heard = listen(roster)
    with structlog.testing.capture_logs() as logs:
        roster.join(make_worker("a"))
    assert heard == [(MemberChange.JOINED, "a")]
    assert [line["event"] for line in logs] == ["listener_failed"]


def test_a_state_cannot_be_changed() -> None:
    roster = Roster()
    roster.join(make_worker("a"))
    with pytest.raises(AttributeError):
        roster.workers()[0].live = False  # type: ignore[misc]
