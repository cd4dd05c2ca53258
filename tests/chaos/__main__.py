"""`make chaos`: plays the chaos matrix, cell by cell, and writes docs/chaos.md.

What has been found of other cells stays as it is: --row, --fault and --phase choose some, and --minutes ends it
in time. Needs root, for network namespaces and small disks.
"""

from __future__ import annotations

import argparse
import signal
import sys
import tempfile
import time
from pathlib import Path

from benchmarks.kv.namespaces import why_not
from tests.chaos.faults import FAULTS
from tests.chaos.findings import Findings
from tests.chaos.matrix import ROWS, Cell, cells
from tests.chaos.phases import PHASES
from tests.chaos.site import running_site
from tests.chaos.trial import RECOVERY_S, Finding, play


def say(cell: Cell, finding: Finding) -> None:
    """A line."""
    error = f" ({finding.error})" if finding.error else ""
    print(
        f"{cell.id:48s} {finding.seen:6s} pause {finding.pause_s:5.2f} s  "
        f"back {finding.recovery_s:5.2f} s  whole {finding.whole_s:5.2f} s{error}",
        flush=True,
    )
    for sentence in finding.wrong:
        print(f"    WRONG: {sentence}", flush=True)


def chosen(options: argparse.Namespace, findings: Findings) -> list[Cell]:
    """The cells to play."""
    return [
        cell
        for cell in cells()
        if cell.row in (options.row or [row.name for row in ROWS])
        and cell.fault in (options.fault or FAULTS)
        and cell.phase in (options.phase or PHASES)
        and not (options.missing and findings.has(cell))
    ]


def main() -> int:
    """Exit status 0 when nothing was wrong."""
    parser = argparse.ArgumentParser(description=__doc__, prog="python -m tests.chaos")
    parser.add_argument("--row", action="append", choices=[row.name for row in ROWS])
    parser.add_argument("--fault", action="append", choices=list(FAULTS))
    parser.add_argument("--phase", action="append", choices=list(PHASES))
    parser.add_argument("--missing", action="store_true", help="only cells without a finding")
    parser.add_argument("--minutes", type=float, default=600.0, help="begin no cell after them")
    options = parser.parse_args()
    # Namespaces and disks go with whoever made them.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("ended by SIGTERM"))
    if reason := why_not():
        sys.exit(f"the chaos matrix cannot be played here: {reason}")
    begun_at, num_wrong = time.monotonic(), 0
    findings = Findings.load()
    wanted = chosen(options, findings)
    for shared in (False, True):
        rows = [row.name for row in ROWS if row.has_shared_index == shared]
        here = [cell for cell in wanted if cell.row in rows]
        if not here:
            continue
        with (
            tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder,
            running_site(Path(folder), shared_index=shared) as site,
        ):
            for cell in here:
                if time.monotonic() - begun_at > options.minutes * 60:
                    break
                try:
                    finding = play(site, cell, RECOVERY_S)
                except AssertionError as error:
                    print(f"{cell.id:48s} could not be played: {error}", flush=True)
                    num_wrong += 1
                    continue
                say(cell, finding)
                findings.add(cell, finding)
                findings.save()
                num_wrong += bool(finding.wrong)
    return 1 if num_wrong else 0


if __name__ == "__main__":
    sys.exit(main())
