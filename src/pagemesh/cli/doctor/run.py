"""Entry point of `pagemesh doctor`."""

from __future__ import annotations

import asyncio
import io
import json
import sys

from pagemesh.cli.doctor.checks import run_checks
from pagemesh.cli.doctor.facts import Facts, Fault
from pagemesh.cli.doctor.findings import Status
from pagemesh.cli.doctor.gathering import Gatherer
from pagemesh.cli.doctor.report import as_json, as_text
from pagemesh.cli.doctor.settings import DoctorConfig

EXIT_WRONG = 1
EXIT_NOBODY = 2


def run(config: DoctorConfig) -> int:
    """Ask, judge and print; the exit code: 0 when nothing is wrong, 1 when something is, 2 when nobody answered."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        # The lines have arrows, which a terminal may not be able to show.
        sys.stdout.reconfigure(errors="replace")
    facts = asyncio.run(Gatherer(config).facts())
    results = run_checks(facts)
    where = " and ".join(filter(None, (config.gateway, config.kvstore)))
    if config.json:
        print(json.dumps(as_json(where, facts, results), indent=2))
    else:
        print(as_text(where, results))
    if not _was_anybody_asked(facts):
        return EXIT_NOBODY
    return EXIT_WRONG if max(result.status for result in results) is Status.WRONG else 0


def _was_anybody_asked(facts: Facts) -> bool:
    """Whether something of the mesh answered, and let itself be looked at."""
    gateway = facts.gateway
    if gateway is not None and not gateway.fault and gateway.router_fault is not Fault.NO_KEY:
        return True
    return any(process.said for process in facts.processes)
