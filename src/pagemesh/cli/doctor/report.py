"""What was found, as lines for people or as JSON for programs."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence
from typing import Any, Final

from pagemesh.cli.doctor.facts import Examined, Facts
from pagemesh.cli.doctor.findings import Finding, Result, Status
from pagemesh.cli.doctor.words import count
from pagemesh.v1 import process_pb2

FORMAT: Final = 1
"""Of the JSON: goes up when a field goes or gets another meaning, not when one is added."""

_WIDTH: Final = 110
_INDENT: Final = " " * 6


def as_text(where: str, results: Sequence[Result]) -> str:
    """One line for each check, and below it what is not as it should be and what to do."""
    width = max(len(result.check) for result in results)
    lines = [f"The mesh at {where}", ""]
    for result in results:
        lines.append(f"  {result.status.word:<9}{result.check:<{width + 2}}{result.summary}")
        for finding in sorted(result.findings, key=lambda finding: -finding.status):
            lines += _finding_lines(finding)
    return "\n".join([*lines, "", _verdict(results)])


def _finding_lines(finding: Finding) -> Iterator[str]:
    text = f"{finding.subject}: {finding.what}."
    yield from textwrap.wrap(
        text, _WIDTH, initial_indent=_INDENT, subsequent_indent=_INDENT, break_on_hyphens=False
    )
    yield from textwrap.wrap(
        f"{finding.advice}.",
        _WIDTH,
        initial_indent=f"{_INDENT}→ ",
        subsequent_indent=f"{_INDENT}  ",
        break_on_hyphens=False,
    )


def _verdict(results: Sequence[Result]) -> str:
    found = [finding.status for result in results for finding in result.findings]
    wrong, warnings = found.count(Status.WRONG), found.count(Status.WARNING)
    if not wrong and not warnings:
        return "All is well."
    parts = []
    if wrong:
        parts.append(f"{count(wrong, 'thing')} {'is' if wrong == 1 else 'are'} wrong")
    if warnings:
        parts.append(count(warnings, "warning"))
    return f"{', '.join(parts)}."


def as_json(where: str, facts: Facts, results: Sequence[Result]) -> dict[str, Any]:
    """The same with all that was found about each process; docs/doctor.md tells of the fields."""
    worst = max(result.status for result in results)
    return {
        "format": FORMAT,
        "mesh": where,
        "status": worst.word,
        "checks": [_check_object(result) for result in results],
        "processes": [_process_object(facts, each) for each in facts.processes],
    }


def _check_object(result: Result) -> dict[str, Any]:
    return {
        "name": result.check,
        "status": result.status.word,
        "summary": result.summary,
        "findings": [
            {
                "status": finding.status.word,
                "subject": finding.subject,
                "what": f"{finding.what}.",
                "advice": f"{finding.advice}.",
            }
            for finding in result.findings
        ],
    }


def _process_object(facts: Facts, process: Examined) -> dict[str, Any]:
    said = process.said
    shown: dict[str, Any] = {
        "name": facts.name(process),
        "address": process.address,
        "answers": said is not None,
        "fault": None if process.fault is None else process.fault.name.lower(),
    }
    if said is None:
        return shown
    reading = min(process.readings, key=lambda each: each.uncertainty)
    return {
        **shown,
        "kind": said.WhichOneof("part"),
        "version": said.version,
        "state": process_pb2.ProcessState.Name(said.state).removeprefix("PROCESS_STATE_").lower(),
        "host": said.host_name,
        "clock_offset_seconds": round(reading.offset, 3),
    }
