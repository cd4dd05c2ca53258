"""What does it cost to ship KV, and what does it bring? One part for each question, in benchmarks/kv."""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable
from importlib import import_module

from report import Report, choice, make_parser

QUESTION = "What shipping KV costs and brings"
PARTS = {
    "speed": "kv.transfer_speed",
    "first-token": "kv.first_tokens",
    "interference": "kv.interference",
    "receiving": "kv.receiving",
    "links": "kv.priced_links",
}
"""By the name of the command line, the module of each."""


def main() -> None:
    """Measure the chosen parts."""
    parser = make_parser("kv_transfer", QUESTION)
    parser.add_argument("--only", default=",".join(PARTS), help="which (default: %(default)s)")
    options = parser.parse_args()
    # So that whoever ends the program has meshes and namespaces removed.
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    report = Report("kv_transfer", QUESTION)
    for name in choice(options.only, PARTS):
        measure: Callable[..., None] = import_module(PARTS[name]).measure
        measure(report, quick=options.quick)
        # All that there is by now: a later part may fail, or be ended.
        report.write(options.json)
    report.print()


if __name__ == "__main__":
    main()
