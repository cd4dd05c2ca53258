"""All checks together, and the order and shape of what is told."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import pytest

from pagemesh.cli.doctor.checks import CHECKS, processes, run_checks
from pagemesh.cli.doctor.facts import Facts, Fault
from pagemesh.cli.doctor.findings import Result, Status
from pagemesh.cli.doctor.report import as_json, as_text
from tests.unit.cli.doctor.mesh_facts import (
    KVSTORE,
    WORKERS,
    examined,
    facts,
    info,
    only,
    router,
    said,
    silent,
    worker,
)


def test_a_mesh_in_which_all_is_well_gets_no_finding() -> None:
    results = run_checks(facts())
    assert [finding for result in results for finding in result.findings] == []
    assert {result.check: result.status.word for result in results} == dict.fromkeys(
        CHECKS, "ok"
    ) | {"links": "skipped"}


def test_nothing_at_all_is_no_reason_to_fail() -> None:
    results = run_checks(Facts())
    assert {result.status for result in results} == {Status.SKIPPED}


def test_a_process_that_says_nothing_of_its_kind_is_no_reason_to_fail() -> None:
    results = run_checks(facts(examined("x", "127.0.0.1:1", said())))
    assert "could not be made" not in {result.summary for result in results}


def test_a_check_that_fails_hides_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(mesh: Facts) -> Result:
        raise KeyError("worker-7")

    monkeypatch.setitem(dict_of(CHECKS), "parity", broken)
    results = {result.check: result for result in run_checks(facts())}
    assert results["parity"].status is Status.WARNING
    assert "KeyError: 'worker-7'" in only(results["parity"]).what
    assert results["index"].status is Status.OK


def dict_of(checks: Mapping[str, Any]) -> dict[str, Any]:
    assert isinstance(checks, dict)
    return checks


def broken_mesh() -> Facts:
    frozen = silent("decode-0", "127.0.0.1:7200", Fault.SILENT)
    return facts(router(info("decode-0")), frozen)


def test_lines_say_who_is_wrong_and_what_to_do() -> None:
    text = as_text("http://127.0.0.1:8000", [processes.check(broken_mesh())])
    assert text.splitlines() == [
        "The mesh at http://127.0.0.1:8000",
        "",
        "  wrong    processes  router answers and serves",
        "      decode-0: 127.0.0.1:7200 was named by the kvstore, but it takes connections and answers nothing.",
        "      → Look at the process itself: `ps -o stat= -p PID` says T when it was stopped, which `kill -CONT PID`",
        "        ends; else see its log and the load of its machine, and restart it if it hangs.",
        "",
        "1 thing is wrong.",
    ]
    assert as_text("x", run_checks(facts())).endswith("\n\nAll is well.")


def test_json_has_everything_and_keeps_its_shape() -> None:
    mesh = broken_mesh()
    told = json.loads(json.dumps(as_json("http://127.0.0.1:8000", mesh, [processes.check(mesh)])))
    finding = told["checks"][0].pop("findings")[0]
    assert set(finding) == {"status", "subject", "what", "advice"}
    assert (finding["status"], finding["subject"]) == ("wrong", "decode-0")
    assert told == {
        "format": 1,
        "mesh": "http://127.0.0.1:8000",
        "status": "wrong",
        "checks": [
            {"name": "processes", "status": "wrong", "summary": "router answers and serves"}
        ],
        "processes": [
            {
                "name": "router",
                "address": "127.0.0.1:7100",
                "answers": True,
                "fault": None,
                "kind": "router",
                "version": "1.0",
                "state": "serving",
                "host": "",
                "clock_offset_seconds": 0.0,
            },
            {
                "name": "decode-0",
                "address": "127.0.0.1:7200",
                "answers": False,
                "fault": "silent",
            },
        ],
    }


def test_processes_of_one_kind_are_told_apart_by_their_addresses() -> None:
    two = facts(router(*WORKERS), router(*WORKERS, address="127.0.0.1:7101"), worker(WORKERS[0]))
    assert [two.name(each) for each in two.processes] == [
        "router at 127.0.0.1:7100",
        "router at 127.0.0.1:7101",
        "decode-0",
    ]
    assert KVSTORE not in {each.address for each in two.processes}
