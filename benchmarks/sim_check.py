"""Does `pagemesh sim` say what happens? One trace on eight real workers and on eight modelled ones, per policy.

The workers run the demo model with a thread each and caches that are too small for all prefixes alone. A router
for each policy stands beside them; one is used at a time, with token ids that no cache has seen. The simulation
gets the same trace, the names that the real blocks had, and rates that were measured in that run. So the routers'
decisions can be compared one to one: what differs is what the model leaves out.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Final, get_args

from mesh import MODEL
from report import Report, choice, make_parser
from routes.processes import Processes
from simcheck.compare import compare, note_rates
from simcheck.measure import NUM_WORKERS, WORKER_IDS, measure
from simcheck.traces import RATE, WORKLOADS, check_trace

from pagemesh.config import RoutingPolicy
from pagemesh.sim.model import MeshModel, write_model

NAME: Final = "sim_check"
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
        "--rates", help="file for what was measured last, which `pagemesh sim --rates` reads"
    )
    options = parser.parse_args()
    policies = choice(options.policies, POLICIES)
    workloads = choice(options.workloads, WORKLOADS)
    if not policies or not workloads:
        parser.error("there must be a policy and a workload")
    report = Report(NAME, QUESTION)
    # Of the same commit, what is not measured now keeps its figures.
    report.resume(options.json)
    anew = tuple(f"{workload}, {policy}: " for workload in workloads for policy in policies)
    report.figures = [one for one in report.figures if not one.name.startswith(anew)]
    report.settings |= {
        "workers": NUM_WORKERS,
        "requests_per_second": RATE,
        "kv_cache_gib_per_worker": KV_CACHE_GIB,
    }
    with Processes(MODEL) as mesh:
        _start(mesh, policies)
        scale = 0.3 if options.quick else 1.0
        model = asyncio.run(_measure_all(mesh, workloads, policies, scale, report))
    if options.rates is not None:
        write_model(options.rates, model)
    report.print()
    report.write(options.json)


def _start(mesh: Processes, policies: Sequence[str]) -> None:
    mesh.start_kvstore()
    for name in WORKER_IDS:
        mesh.start_worker(name, "--kv-cache-memory", str(KV_CACHE_GIB))
    for policy in policies:
        mesh.start_router(policy, "--policy", policy)
    mesh.await_members(WORKER_IDS)
    for policy in policies:
        mesh.await_serving(policy)


async def _measure_all(
    mesh: Processes,
    workloads: Sequence[str],
    policies: Sequence[str],
    scale: float,
    report: Report,
) -> MeshModel:
    """Adds the figures; gives the rates that the last simulation had."""
    # On one loop: the events of gRPC's channels outlive them.
    for workload in workloads:
        trace = check_trace(workload, scale)
        for policy in POLICIES:
            if policy in policies:
                name = f"{workload}, {policy}"
                print(f"{name}: {len(trace)} requests", flush=True)
                sides = await measure(mesh, policy, trace)
                note_rates(report, name, sides)
                compare(report, name, sides)
    return sides.model


if __name__ == "__main__":
    main()
