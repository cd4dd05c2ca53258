"""What does KV transfer cost, and what does it bring? One part for each question, in benchmarks/kv."""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable
from importlib import import_module

from report import RESULTS, Report, choice, make_parser

QUESTION = "What shipping KV costs and brings"
PARTS = {
    "speed": "kv.transfer_speed",
    "first-token": "kv.first_tokens",
    "lone-prompts": "kv.lone_prompts",
    "interference": "kv.interference",
    "receiving": "kv.receiving",
    "links": "kv.priced_links",
}
"""By the name of the command line, the module of each."""


def main() -> None:
    """Measure the chosen parts; each has a report and a file of its own."""
    parser = make_parser("kv_transfer", QUESTION, files="kv_transfer_PART.json for each part")
    parser.add_argument("--only", default=",".join(PARTS), help="which (default: %(default)s)")
    options = parser.parse_args()
    parts = choice(options.only, PARTS)
    if options.json is not None and len(parts) != 1:
        parser.error("--json takes the figures of one part: say which by --only")
    # So that whoever ends the program has meshes and namespaces removed.
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    for part in parts:
        report = Report(f"kv_transfer_{part.replace('-', '_')}", QUESTION)
        measure: Callable[..., None] = import_module(PARTS[part]).measure
        measure(report, quick=options.quick)
        # One that cannot run here has said why, and leaves its file as it was.
        if report.figures:
            report.print()
            report.write(options.json or RESULTS / f"{report.name}.json")


if __name__ == "__main__":
    main()
