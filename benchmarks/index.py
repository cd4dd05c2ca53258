"""How fast and how large is the index of KV blocks, in memory and on Valkey? Parts in benchmarks/blockindex."""

from __future__ import annotations

import logging

import structlog
from blockindex import direct, over_grpc, replicas, restarts
from report import RESULTS, Report, choice, make_parser

QUESTION = "The index of KV blocks: lookups, events, memory, and how soon it is whole again"
WORKERS = (8, 64, 512)
PARTS = {
    "memory-1M": ("memory", 1_000_000, WORKERS),
    "memory-10M": ("memory", 10_000_000, WORKERS),
    "redis-1M": ("redis", 1_000_000, WORKERS),
    "redis-10M-8": ("redis", 10_000_000, (8,)),
    "redis-10M-64": ("redis", 10_000_000, (64,)),
    "redis-10M-512": ("redis", 10_000_000, (512,)),
}
"""By the name of the command line: where the index is kept, its blocks, and numbers of workers."""
RESTARTS = {
    f"restarts-{kind}-{num_workers}": (kind, num_workers)
    for kind in ("memory", "redis")
    for num_workers in WORKERS
}
GRPC = {"grpc": over_grpc.measure, "replicas": replicas.measure}
ALL = (*PARTS, *GRPC, *RESTARTS)


def main() -> None:
    """Measure the chosen parts; each has a report and a file of its own."""
    parser = make_parser("index", QUESTION, files="index_PART.json for each part")
    parser.add_argument("--only", default=",".join(ALL), help="which (default: %(default)s)")
    options = parser.parse_args()
    parts = choice(options.only, ALL)
    if options.json is not None and len(parts) != 1:
        parser.error("--json takes the figures of one part: say which by --only")
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR))
    for part in parts:
        report = Report(f"index_{part.replace('-', '_')}", QUESTION)
        if part in GRPC:
            GRPC[part](report, quick=options.quick)
        elif part in RESTARTS:
            restarts.measure(report, *RESTARTS[part], quick=options.quick)
        else:
            kind, num_blocks, workers = PARTS[part]
            direct.measure(report, kind, num_blocks, workers, quick=options.quick)
        report.print()
        report.write(options.json or RESULTS / f"{report.name}.json")


if __name__ == "__main__":
    main()
