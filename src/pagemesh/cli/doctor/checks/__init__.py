"""One check per file: each is a function from facts to what it found, and asks nobody anything."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from pagemesh.cli.doctor.checks import (
    certificates,
    clocks,
    gateway,
    index,
    links,
    load,
    membership,
    models,
    parity,
    processes,
    versions,
)
from pagemesh.cli.doctor.facts import Facts
from pagemesh.cli.doctor.findings import Finding, Result, Status

CHECKS: Final[Mapping[str, Callable[[Facts], Result]]] = {
    gateway.NAME: gateway.check,
    processes.NAME: processes.check,
    versions.NAME: versions.check,
    models.NAME: models.check,
    membership.NAME: membership.check,
    parity.NAME: parity.check,
    index.NAME: index.check,
    clocks.NAME: clocks.check,
    links.NAME: links.check,
    load.NAME: load.check,
    certificates.NAME: certificates.check,
}
"""In the order in which they are told: what breaks everything else comes first."""


def run_checks(facts: Facts) -> list[Result]:
    """What all of them come to. One that fails is told as such: the others may have found what is wrong."""
    return [_run(name, check, facts) for name, check in CHECKS.items()]


def _run(name: str, check: Callable[[Facts], Result], facts: Facts) -> Result:
    try:
        return check(facts)
    except Exception as error:
        # Boundary of one check: processes of another version may say what nobody has thought of.
        what = f"This check itself failed ({type(error).__name__}: {error})"
        advice = "Use the others, and report it with what the mesh is made of"
        finding = Finding(Status.WARNING, "pagemesh doctor", what, advice)
        return Result(name, "could not be made", [finding])
