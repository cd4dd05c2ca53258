"""Checks of the index, of the links between workers, and of their load."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from pagemesh.cli.doctor.checks import index, links, load
from pagemesh.cli.doctor.facts import Examined, Facts, Fault
from pagemesh.v1 import kvstore_pb2, process_pb2, types_pb2
from tests.unit.cli.doctor.mesh_facts import (
    WORKERS,
    brief,
    digest,
    duration,
    examined,
    facts,
    info,
    kvstore,
    only,
    router,
    said,
    silent,
    worker,
)

Digest = kvstore_pb2.CacheDigest


def holding(*held: Digest) -> Examined:
    """decode-0, by whose count its cache held this at each reading."""
    registered = info()
    readings = [
        said(worker=process_pb2.WorkerDescription(worker=registered, held=each)) for each in held
    ]
    return examined("decode-0", registered.address, *readings)


def believing(*believed: Digest, address: str = "127.0.0.1:7000", **fields: object) -> Examined:
    readings = []
    for each in believed:
        member = process_pb2.MemberDescription(worker=info(), publishes_here=True, believed=each)
        member.MergeFrom(process_pb2.MemberDescription(**fields))  # type: ignore[arg-type]
        described = process_pb2.KvStoreDescription(index="redis://one", members=[member])
        readings.append(said(kvstore=described))
    return examined("kvstore", address, *readings)


ONE, TWO, THREE = (digest(number, number) for number in (1, 2, 3))


@pytest.mark.parametrize(
    ("held", "believed", "diverges"),
    [
        ((ONE, ONE), (ONE, ONE), False),
        ((ONE, ONE), (TWO, TWO), True),
        ((ONE, TWO), (TWO, TWO), False),
        ((ONE, TWO), (THREE, THREE), False),
        ((ONE, ONE), (TWO, ONE), False),
        ((ONE,), (TWO,), False),
    ],
    ids=["equal", "different", "catching up", "changing", "late", "asked once"],
)
def test_what_differs_twice_and_did_not_change_diverges(
    held: Sequence[Digest], believed: Sequence[Digest], diverges: bool
) -> None:
    found = index.check(facts(holding(*held), believing(*believed)))
    assert brief(found) == ([("wrong", "decode-0")] if diverges else [])


def test_what_the_kvstore_itself_found_to_differ_diverges_under_traffic_too() -> None:
    found = index.check(
        facts(holding(ONE, TWO), believing(TWO, THREE, differs=True, difference_count=4))
    )
    assert brief(found) == [("wrong", "decode-0")]
    assert "believes that it holds 3 blocks, and it holds 2 by its own count" in only(found).what


def test_what_was_put_right_is_counted_and_no_finding() -> None:
    found = index.check(facts(holding(ONE, ONE), believing(ONE, ONE, difference_count=2)))
    assert brief(found) == []
    assert found.summary == "1 block of 1 worker, in redis://one; it was put right 2 times"


def test_an_index_that_cannot_be_read_is_told_with_the_reason() -> None:
    found = index.check(facts(kvstore(index_error="Redis at x does not answer")))
    assert brief(found) == [("wrong", "kvstore")]
    assert "Redis at x does not answer" in only(found).what


def test_replicas_need_one_index() -> None:
    one, two = believing(ONE, ONE), kvstore(info(), address="127.0.0.1:7001")
    assert brief(index.check(facts(one, two))) == [("wrong", "kvstores")]
    assert two.said is not None
    two.said.kvstore.index = "redis://two"
    assert brief(index.check(facts(one, two))) == [("wrong", "kvstores")]


@pytest.mark.parametrize(
    ("other", "expected"),
    [
        ((ONE, ONE), []),
        ((TWO, TWO), [("wrong", "decode-0")]),
        ((TWO, ONE), []),
    ],
    ids=["equal", "different", "catching up"],
)
def test_replicas_must_believe_the_same(
    other: Sequence[Digest], expected: list[tuple[str, str]]
) -> None:
    second = believing(*other, address="127.0.0.1:7001")
    assert brief(index.check(facts(believing(ONE, ONE), second))) == expected


def reached(
    worker_id: str = "decode-1", *, error: str = "", answered_by: str = ""
) -> process_pb2.ReachResponse:
    peer = process_pb2.ReachedPeer(worker_id=worker_id, error=error, answered_by=answered_by)
    return process_pb2.ReachResponse(peers=[peer])


def mesh(response: process_pb2.ReachResponse, *others: Examined) -> Facts:
    crew = others or tuple(map(worker, WORKERS))
    return facts(
        router(*WORKERS), kvstore(*WORKERS), *crew, reached={info("decode-0").address: response}
    )


def test_who_is_reached_is_no_finding() -> None:
    found = links.check(mesh(reached(answered_by="decode-1")))
    assert (brief(found), found.summary) == ([], "1 way between workers tried")


def test_who_cannot_be_reached_by_others_is_named_with_the_address() -> None:
    found = links.check(mesh(reached(error="UNAVAILABLE: no route")))
    assert brief(found) == [("wrong", "decode-1")]
    assert "decode-0 cannot reach it at 127.0.0.1:7201" in only(found).what
    assert "UNAVAILABLE: no route" in only(found).what


def test_an_address_at_which_another_worker_answers_is_wrong() -> None:
    found = links.check(mesh(reached(answered_by="decode-0")))
    assert brief(found) == [("wrong", "decode-1")]
    assert "decode-0 answers there" in only(found).what


def test_who_answers_nobody_is_left_to_another_check() -> None:
    frozen = silent("decode-1", "127.0.0.1:7201", Fault.SILENT)
    crew = (worker(WORKERS[0]), frozen, worker(WORKERS[2]))
    assert brief(links.check(mesh(reached(error="silent"), *crew))) == []


@pytest.mark.parametrize(("seconds", "expected"), [(30, [("warning", "decode-0")]), (90, [])])
def test_kv_that_did_not_come_counts_for_a_minute(
    seconds: float, expected: list[tuple[str, str]]
) -> None:
    failure = process_pb2.KvFailure(
        worker_id="prefill-0", count=3, message="the stream broke", age=duration(seconds)
    )
    found = links.check(facts(worker(info(), kv_failures=[failure])))
    assert brief(found) == expected


def measuring(rates: Sequence[float]) -> Examined:
    """A kvstore that was told of links to decode-0."""
    measured = kvstore(info())
    assert measured.said is not None
    measured.said.kvstore.members[0].load.links.extend(
        types_pb2.LinkRate(worker_id=f"prefill-{number}", bytes_per_second=rate)
        for number, rate in enumerate(rates)
    )
    return measured


@pytest.mark.parametrize(
    ("rates", "expected"),
    [
        ([100e6, 100e6, 5e6], [("warning", "decode-0")]),
        ([100e6, 100e6, 20e6], []),
        ([100e6, 5e6], []),
    ],
    ids=["much slower", "slower", "too few"],
)
def test_a_link_far_below_the_others_is_told(
    rates: Sequence[float], expected: list[tuple[str, str]]
) -> None:
    assert brief(links.check(facts(measuring(rates)))) == expected


@pytest.mark.parametrize(
    ("load_", "words"),
    [
        (types_pb2.WorkerLoad(waiting_request_count=5, free_block_count=4), "4 of 100 are free"),
        (types_pb2.WorkerLoad(waiting_request_count=9, free_block_count=50), "at once (8)"),
        (types_pb2.WorkerLoad(waiting_request_count=8, free_block_count=50), ""),
        (types_pb2.WorkerLoad(running_request_count=8, free_block_count=4), ""),
    ],
    ids=["for memory", "for a place", "not for long", "nobody"],
)
def test_what_requests_wait_for_is_told(load_: types_pb2.WorkerLoad, words: str) -> None:
    member = process_pb2.MemberDescription(worker=info(block_count=100, max_num_seqs=8), load=load_)
    found = load.check(facts(kvstore(members=[member])))
    assert brief(found) == ([("warning", "decode-0")] if words else [])
    assert all(words in finding.what for finding in found.findings)


def apart(change: str) -> Facts:
    one, two = worker(info("decode-0")), worker(info("decode-1"))
    assert one.said is not None
    assert two.said is not None
    match change:
        case "not all of them share their memory":
            two.said.worker.shares_kv_memory = False
        case "different users":
            two.said.host.user_id = 7
        case "different containers":
            two.said.host.pid_namespace = 7
        case "could not read":
            one.said.worker.unreadable_worker_ids.append("decode-1")
        case "different machines":
            two.said.host.boot_id = "another"
    return facts(one, two)


@pytest.mark.parametrize(
    "change",
    [
        "not all of them share their memory",
        "different users",
        "different containers",
        "could not read",
    ],
)
def test_kv_that_could_stay_on_one_machine_is_noted_with_the_reason(change: str) -> None:
    found = links.check(apart(change))
    assert brief(found) == [("note", "decode-0 and decode-1")]
    assert change in only(found).what


@pytest.mark.parametrize("change", ["nothing", "different machines"])
def test_kv_that_cannot_stay_on_one_machine_or_does_is_no_finding(change: str) -> None:
    assert brief(links.check(apart(change))) == []


def test_what_left_meanwhile_is_no_reason_to_fail() -> None:
    gone = mesh(reached("decode-9", error="away"))
    assert brief(links.check(gone)) == []
