"""How close are the kernels to what the machine can do, and how fast beside others'? One entry per operation.

The entries in benchmarks/kernels say what bytes and arithmetic an operation needs at least. The limits
are measured in the same run. A benchmark prints only what it measures: on a machine without a GPU, the CPU's.
"""

from __future__ import annotations

import statistics
import sys
from importlib import import_module
from pathlib import Path

import torch
from report import Report, choice, make_parser

sys.path.insert(0, str(Path(__file__).resolve().parent / "kernels"))

from contest import Contest, Entry, Run
from limits import Limits, measure_limits
from stopwatch import times

from pagemesh.kernels.jit.cpu_isa import CpuIsa, processor_isas, settle_isa

QUESTION = "The kernels against the machine's limits and against others"
ENTRIES = (
    *("attention", "products", "packed", "packing", "experts"),
    *("rows", "sampling", "blocks", "decodes"),
)


def main() -> None:
    """Measure the chosen entries on one device."""
    parser = make_parser("kernels", QUESTION)
    parser.add_argument(
        "--device", choices=("cpu", "cuda"), default=None, help="a GPU if there is one"
    )
    parser.add_argument("--ops", default=",".join(ENTRIES), help="which (default: %(default)s)")
    parser.add_argument(
        "--cpu-isa", choices=[str(isa) for isa in processor_isas()], help="a lesser class"
    )
    options = parser.parse_args()
    if options.cpu_isa:
        settle_isa(CpuIsa(options.cpu_isa))
    device = torch.device(options.device or ("cuda" if torch.cuda.is_available() else "cpu"))
    path = options.json
    if device.type == "cuda":
        path = path.with_name(path.name.replace("kernels", "kernels_cuda"))
    limits = measure_limits(device, quick=options.quick)
    report = Report("kernels", QUESTION, {"device": name_of(device)})
    report.add("copy, GB/s", "", [limits.bytes_per_s / 1e9])
    report.add("product of matrices, TFLOP/s", "", [limits.flops_per_s / 1e12])
    for name in choice(options.ops, ENTRIES):
        entry: Entry = import_module(name).contests
        for contest in entry(device, quick=options.quick):
            hold(contest, device, limits, report, num_rounds=5 if options.quick else 30)
    report.print()
    report.write(path)


def hold(
    contest: Contest, device: torch.device, limits: Limits, report: Report, num_rounds: int
) -> None:
    """Time all sides and add what came out."""
    taken = times(runnable(contest), device, num_rounds)
    for name, samples in taken.items():
        report.add(f"{contest.name}: {name}", "us", samples)
    ours = taken.pop("ours")
    least_us = limits.seconds(contest) * 1e6
    report.add(
        f"{contest.name}: share of the limit",
        "",
        [least_us / one for one in ours],
        at_least=contest.aim_for(least_us, on_gpu=device.type == "cuda"),
    )
    if taken:
        best = min(taken.values(), key=statistics.median)
        rounds = min(len(ours), len(best))
        report.add(
            f"{contest.name}: times as fast as the best other",
            "",
            [theirs / mine for mine, theirs in zip(ours[:rounds], best[:rounds], strict=True)],
            at_least=contest.least_speedup,
        )


@torch.inference_mode()
def runnable(contest: Contest) -> dict[str, Run]:
    """Ours, and those of others that run here at all."""
    runs = {}
    for name, run in contest.runs.items():
        try:
            run()
        except Exception as error:
            if name == "ours":
                raise
            print(f"{contest.name}: {name} does not run: {error}", file=sys.stderr)
        else:
            runs[name] = run
    return runs


def name_of(device: torch.device) -> str:
    """The device in words."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return f"CPU, {torch.get_num_threads()} threads"


if __name__ == "__main__":
    main()
