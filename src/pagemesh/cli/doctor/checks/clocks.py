"""Whether everybody agrees on the time of day."""

from __future__ import annotations

from statistics import median
from typing import Final

from pagemesh.cli.doctor.facts import Facts, Reading
from pagemesh.cli.doctor.findings import Finding, Result, Status

NAME: Final = "clocks"

MOST_SECONDS: Final = 1.0
"""Clocks may be so far apart."""

_BREAKS: Final = (
    "Certificates count as expired or not yet valid there at the wrong time, its logs and traces cannot be put in"
    " order with others', and an epoch of a worker that starts there may be older than the one before"
)
_ADVICE: Final = (
    "Have its machine set its clock by NTP, for example with chrony or systemd-timesyncd"
)


def check(facts: Facts) -> Result:
    """Compares the clocks with that of most, not with this machine's, which may be the one that is wrong."""
    readings = {
        facts.name(each): min(each.readings, key=lambda reading: reading.uncertainty)
        for each in facts.processes
        if each.readings
    }
    if not readings:
        return Result(NAME, "nobody told the time", is_skipped=True)
    middle = median(reading.offset for reading in readings.values())
    findings = [
        _finding(name, reading.offset - middle)
        for name, reading in readings.items()
        if _is_off(reading, middle)
    ]
    worst = max(abs(reading.offset - middle) for reading in readings.values())
    if abs(middle) > MOST_SECONDS + max(reading.uncertainty for reading in readings.values()):
        findings.append(
            Finding(
                Status.WARNING,
                "this machine",
                f"Its clock is {_apart(-middle)} those of the mesh",
                "Set this machine's clock by NTP",
            )
        )
    return Result(NAME, f"at most {worst:.2f} s apart", findings)


def _is_off(reading: Reading, middle: float) -> bool:
    return abs(reading.offset - middle) > MOST_SECONDS + reading.uncertainty


def _finding(name: str, offset: float) -> Finding:
    return Finding(
        Status.WARNING, name, f"Its clock is {_apart(offset)} the others'. {_BREAKS}", _ADVICE
    )


def _apart(offset: float) -> str:
    return f"{abs(offset):.1f} s {'ahead of' if offset > 0 else 'behind'}"
