"""Checks of the gateway, of processes, certificates, versions and clocks."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pagemesh.cli.doctor.checks import certificates, clocks, gateway, processes, versions
from pagemesh.cli.doctor.facts import Certificate, Examined, Fault, Reading
from pagemesh.v1 import process_pb2
from tests.unit.cli.doctor import mesh_facts
from tests.unit.cli.doctor.mesh_facts import (
    WORKERS,
    brief,
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

DAY = 24 * 3600.0


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        (Fault.NOBODY, "nobody listens there"),
        (Fault.SILENT, "takes connections and answers nothing"),
        (Fault.NO_NAME, "name of its host is not known"),
        (Fault.NO_WAY, "no way leads there"),
        (Fault.STRANGER, "something else listens there"),
        (Fault.NO_KEY, "asks for an API key"),
        (Fault.OTHER, "it failed"),
    ],
)
def test_who_does_not_answer_is_named_with_the_reason(fault: Fault, words: str) -> None:
    found = processes.check(facts(router(), silent("decode-0", "127.0.0.1:7200", fault)))
    assert brief(found) == [("wrong", "decode-0")]
    assert words in only(found).what


def test_a_worker_that_left_and_is_gone_may_have_been_meant_to() -> None:
    gone = silent("decode-1", "127.0.0.1:7201", Fault.NOBODY, left=200.0)
    found = processes.check(facts(router(), gone))
    assert brief(found) == [("warning", "decode-1")]
    assert only(found).what.startswith("It left the mesh 3 min ago")


def test_a_worker_that_left_and_is_silent_is_frozen() -> None:
    frozen = silent("decode-1", "127.0.0.1:7201", Fault.SILENT, left=12.0)
    found = processes.check(facts(router(), frozen))
    assert brief(found) == [("wrong", "decode-1")]
    assert only(found).what.endswith("the kvstore dropped it 12 s ago")


@pytest.mark.parametrize(
    ("state", "words"),
    [
        (process_pb2.PROCESS_STATE_STARTING, "has been loading for 90 seconds"),
        (process_pb2.PROCESS_STATE_DRAINING, "was told to stop"),
    ],
)
def test_who_does_not_serve_says_why(state: process_pb2.ProcessState.ValueType, words: str) -> None:
    response = said(state=state, worker=process_pb2.WorkerDescription(worker=info()))
    response.started_at.FromSeconds(1000)
    response.now.FromSeconds(1090)
    found = processes.check(facts(examined("decode-0", "127.0.0.1:7200", response)))
    assert brief(found) == [("warning", "decode-0")]
    assert words in only(found).what


def test_a_health_check_that_disagrees_is_wrong() -> None:
    odd = replace(worker(info()), serves=False)
    assert brief(processes.check(facts(odd))) == [("wrong", "decode-0")]


def test_a_mesh_that_cannot_be_seen_from_here_is_one_finding() -> None:
    through = replace(router(), address="https://mesh.example")
    away = [silent(f"decode-{n}", f"10.0.0.{n}:7200", Fault.NO_WAY) for n in range(3)]
    found = processes.check(facts(through, *away))
    assert brief(found) == [("wrong", "pagemesh doctor")]
    assert "10.0.0.0:7200, 10.0.0.1:7200 and 10.0.0.2:7200" in only(found).what


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        ({"fault": "nobody listens there", "answers": False}, "nobody listens there"),
        ({"router_fault": Fault.NO_KEY}, "asks for an API key"),
        ({"router_fault": Fault.OLD}, "older version"),
        ({"router_fault": Fault.OTHER, "health_status": None}, "no router behind it does"),
        ({"router_fault": Fault.OTHER, "health_status": 503}, "no router behind it does"),
        ({"router_fault": Fault.OTHER, "health_status": 404}, "may be no gateway of pagemesh"),
        ({"health_status": 503, "health": {"missing": "a worker"}}, "Missing is a worker"),
        ({"ready_status": 503, "ready": {"missing": ["demo"]}}, "nobody can run demo"),
    ],
)
def test_what_is_wrong_with_the_gateway(answer: dict[str, object], words: str) -> None:
    found = gateway.check(facts(gateway=mesh_facts.gateway(**answer)))
    assert brief(found) == [("wrong", "gateway")]
    assert words in only(found).what


@pytest.mark.parametrize(
    ("certificate", "expected"),
    [
        (None, []),
        (Certificate(seconds_left=15 * DAY), []),
        (Certificate(seconds_left=13 * DAY), [("warning", "gateway")]),
        (Certificate(fault="certificate has expired"), [("wrong", "gateway")]),
    ],
)
def test_certificates_end(certificate: Certificate | None, expected: list[tuple[str, str]]) -> None:
    found = certificates.check(facts(gateway=mesh_facts.gateway(certificate=certificate)))
    assert brief(found) == expected


def of_version(label: str, version: str, contract: str, torch: str = "") -> Examined:
    response = said(version=version, contract_digest=contract)
    response.worker.worker.CopyFrom(info(label))
    if torch:
        response.package_versions["torch"] = torch
    return examined(label, info(label).address, response)


@pytest.mark.parametrize(("contract", "status"), [("c", "warning"), ("other", "wrong")])
def test_another_version_is_as_bad_as_its_messages_differ(contract: str, status: str) -> None:
    odd = of_version("decode-1", "0.9", contract)
    found = versions.check(facts(router(), kvstore(), of_version("decode-0", "1.0", "c"), odd))
    assert brief(found) == [(status, "decode-1")]
    assert "pagemesh 0.9, others pagemesh 1.0" in only(found).what


def test_a_process_that_does_not_know_the_question_is_old() -> None:
    found = versions.check(facts(router(), silent("decode-0", "127.0.0.1:7200", Fault.OLD)))
    assert brief(found) == [("wrong", "decode-0")]


def test_this_command_may_be_the_odd_one() -> None:
    assert brief(versions.check(facts(own_version="2.0"))) == [("warning", "pagemesh doctor")]


def test_workers_of_a_model_compute_with_one_torch() -> None:
    crew = [of_version(f"decode-{n}", "1.0", "c", torch) for n, torch in enumerate("221")]
    assert brief(versions.check(facts(*crew))) == [("warning", "decode-2")]


def with_clock(process: Examined, *offsets: tuple[float, float]) -> Examined:
    assert process.said is not None
    return replace(process, readings=[Reading(process.said, *each) for each in offsets])


def test_a_clock_that_differs_from_most_is_told_with_its_offset() -> None:
    off = with_clock(worker(WORKERS[0]), (-3.5, 0.01))
    found = clocks.check(facts(router(), kvstore(), worker(WORKERS[1]), off))
    assert brief(found) == [("warning", "decode-0")]
    assert only(found).what.startswith("Its clock is 3.5 s behind the others'")


def test_an_offset_is_no_finding_while_it_may_be_the_way() -> None:
    far = with_clock(worker(WORKERS[0]), (2.5, 2.0), (1.5, 0.6))
    found = clocks.check(facts(router(), kvstore(), worker(WORKERS[1]), far))
    assert brief(found) == []


def test_where_all_agree_it_is_this_machines_clock() -> None:
    crew = [with_clock(worker(each), (-120.0, 0.01)) for each in WORKERS]
    found = clocks.check(facts(*crew))
    assert brief(found) == [("warning", "this machine")]
    assert only(found).what == "Its clock is 120.0 s ahead of those of the mesh"
