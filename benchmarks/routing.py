"""What do the router's decisions bring, and what do they cost? One part for each question, in benchmarks/routes."""

from __future__ import annotations

import argparse
import math
import signal
import sys
import time
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Final

from report import RESULTS, Report, choice, make_parser

QUESTION: Final = "What the router's judgement brings and costs"
PARTS: Final = {
    "policies": "routes.policies",
    "router-cpu": "routes.router_cpu",
    "convergence": "routes.convergence",
}
"""By the name of the command line, the module of each."""


def main() -> None:
    """Measure the chosen parts; each has a report and a file of its own."""
    parser = make_parser("routing", QUESTION, files="routing_PART.json for each part")
    parser.add_argument("--only", default=",".join(PARTS), help="which (default: %(default)s)")
    parser.add_argument(
        "--minutes",
        type=float,
        help="begin nothing after so many; the same command then goes on with what is left",
    )
    parser.add_argument(
        "--rounds", type=int, default=2, help="of policies and convergence (default: %(default)s)"
    )
    options = parser.parse_args()
    parts = choice(options.only, PARTS)
    if options.json is not None and len(parts) != 1:
        parser.error("--json takes the figures of one part: say which by --only")
    # So that whoever ends the program has processes ended.
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    for part in parts:
        name = f"routing_{part.replace('-', '_')}"
        _run(part, name, options.json or RESULTS / f"{name}.json", options)


def _run(part: str, name: str, path: Path, options: argparse.Namespace) -> None:
    """One part, or as much of it as there is time for."""
    minutes: float | None = options.minutes
    report = Report(name, QUESTION)
    unfinished = path.with_suffix(".unfinished.json")
    until = math.inf
    if minutes is not None:
        until = time.monotonic() + 60 * minutes
        report.resume(unfinished)
    measure: Callable[..., bool] = import_module(PARTS[part]).measure
    num_rounds = 1 if options.quick else options.rounds
    if not measure(report, quick=options.quick, until=until, num_rounds=num_rounds):
        report.write(unfinished)
        return
    unfinished.unlink(missing_ok=True)
    report.print()
    report.write(path)


if __name__ == "__main__":
    main()
