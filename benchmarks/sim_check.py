"""Does `pagemesh sim` say what happens? One trace on eight real workers and on eight modelled ones, per policy.

The workers run the demo model with a thread each and caches that are too small for all prefixes alone. A router
for each policy stands beside them; one is used at a time, with token ids that no cache has seen. The simulation
gets the same trace, the names that the real blocks had, and the rates of workers that were alone on the machine,
which all of them share: so decisions can be compared one to one, and times that nobody fitted.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final, get_args

from mesh import MODEL
from report import Report, choice, make_parser
from routes.processes import Processes
from simcheck.compare import compare, note_rates
from simcheck.measure import measure
from simcheck.modelled import NUM_WORKERS, WORKER_IDS, measure_alone
from simcheck.rates import write_rates
from simcheck.times import LIMITS
from simcheck.traces import MAX_WAITING_REQUESTS, WORKLOADS, check_trace

from pagemesh.config import RoutingPolicy

NAME: Final = "sim_check"
Pair = tuple[str, RoutingPolicy]
"""A workload and a policy."""
QUESTION: Final = "Does the simulator say what happens on eight real workers?"
POLICIES: Final[tuple[RoutingPolicy, ...]] = get_args(RoutingPolicy)
KV_CACHE_GIB: Final = 0.03
"""About 5,000 tokens: a third of all prefixes."""


def main() -> None:
    """Measure, simulate, compare."""
    parser = make_parser(NAME, QUESTION)
    for flag, names in (("--policies", POLICIES), ("--workloads", WORKLOADS)):
        parser.add_argument(flag, default=",".join(names), help="which (default: %(default)s)")
    parser.add_argument(
        "--minutes",
        type=float,
        default=math.inf,
        help="begin nothing after so many; the same command then goes on with what is left",
    )
    parser.add_argument(
        "--rates",
        type=Path,
        help="file for what was measured last, which `pagemesh sim --rates` reads",
    )
    options = parser.parse_args()
    until = time.monotonic() + 60 * options.minutes
    policies = choice(options.policies, POLICIES)
    workloads = choice(options.workloads, WORKLOADS)
    if not policies or not workloads:
        parser.error("there must be a policy and a workload")
    report = Report(NAME, QUESTION)
    unfinished: Path = options.json.with_suffix(".unfinished.json")
    report.resume(unfinished)
    report.settings |= {
        "workers": NUM_WORKERS,
        "requests_per_second": {name: WORKLOADS[name].rate for name in workloads},
        "max_waiting_requests": MAX_WAITING_REQUESTS,
        "good_requests_seconds": {"ttft": LIMITS.ttft, "tpot": LIMITS.tpot},
        "kv_cache_gib_per_worker": KV_CACHE_GIB,
    }
    pairs = [(name, policy) for name in workloads for policy in POLICIES if policy in policies]
    left = [pair for pair in pairs if not _is_measured(report, pair)]
    with Processes(MODEL) as mesh:
        _start(mesh, dict.fromkeys(policy for _, policy in left))
        scale = 0.3 if options.quick else 1.0
        num_done = asyncio.run(_measure_all(mesh, left, scale, report, until, options.rates))
    if num_done < len(left):
        report.write(unfinished)
        return
    unfinished.unlink(missing_ok=True)
    report.print()
    report.write(options.json)


def _is_measured(report: Report, pair: Pair) -> bool:
    """Whether its last figure is there."""
    return bool(report.samples(f"{_name(pair)}: refused, simulated"))


def _name(pair: Pair) -> str:
    return ", ".join(pair)


def _start(mesh: Processes, policies: Iterable[str]) -> None:
    mesh.start_kvstore()
    for name in WORKER_IDS:
        mesh.start_worker(name, "--kv-cache-memory", str(KV_CACHE_GIB))
    limit = ("--max-waiting-requests", str(MAX_WAITING_REQUESTS))
    for policy in policies:
        mesh.start_router(policy, "--policy", policy, *limit)
    mesh.await_members(WORKER_IDS)
    for policy in policies:
        mesh.await_serving(policy)


async def _measure_all(
    mesh: Processes,
    pairs: Sequence[Pair],
    scale: float,
    report: Report,
    until: float,
    rates: Path | None,
) -> int:
    """Adds the figures, and writes the rates of the last simulation; gives how many there was time for."""
    # On one loop: the events of gRPC's channels outlive them.
    alone = await measure_alone(mesh)
    for number, pair in enumerate(pairs):
        if number and time.monotonic() > until:
            return number
        workload, policy = pair
        trace = check_trace(workload, scale)
        print(f"{_name(pair)}: {len(trace)} requests", flush=True)
        sides = await measure(mesh, policy, trace, alone)
        note_rates(report, _name(pair), sides)
        compare(report, _name(pair), sides)
        if rates is not None:
            write_rates(rates, sides.model)
    return len(pairs)


if __name__ == "__main__":
    main()
