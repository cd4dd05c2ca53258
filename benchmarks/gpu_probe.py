"""What a GPU makes of the kernels and of whole steps: short measurements for a machine that is rented by
the minute.

Each subcommand measures one thing, the most telling first, and stops when its time is spent. Figures are
written after each of them, and a case that fails does not end the others.
"""

from __future__ import annotations

import argparse
import signal
import sys
import time
from contextlib import nullcontext
from importlib import import_module
from pathlib import Path
from types import FrameType

import torch
from gpu.clock import Clock, CudaClock, HostClock
from gpu.probe import Probe, gpu_state
from report import RESULTS, Report

from pagemesh.engine.cuda.accelerator import CudaAccelerator
from pagemesh.kernels.dispatch import using

QUESTION = "Kernels and steps on a GPU, one measurement at a time"
SECONDS = {
    "limits": 30.0,
    "step": 150.0,
    "products": 120.0,
    "quantised": 60.0,
    "profile": 60.0,
    "attention": 90.0,
    "draw": 40.0,
    "kv": 60.0,
    "memory": 60.0,
}
"""What each subcommand may take unless it is told otherwise."""

WHOLE_ENGINES = ("kv", "memory")
"""Measure engines, which find kernels for their device by themselves."""


def main() -> None:
    """Run one subcommand."""
    options = _options()
    if not options.toy and not torch.cuda.is_available():
        sys.exit("this benchmark needs a CUDA device, and there is none")
    signal.signal(signal.SIGTERM, _stop)
    name = options.name
    path = options.json or RESULTS / f"gpu_probe_{name}.json"
    report = Report(f"gpu_probe_{name}", QUESTION, {"subcommand": name})
    seconds = options.seconds or SECONDS[name]
    started = time.perf_counter()
    clock = _clock(toy=options.toy)
    probe = Probe(clock, report, path, seconds, quick=options.quick, toy=options.toy)
    probe.setting("device", _device_name(probe))
    probe.setting("state before", "" if options.toy else gpu_state())
    torch.manual_seed(7)
    plays = options.toy and name not in WHOLE_ENGINES
    backends = using("cuda") if plays else nullcontext()
    try:
        with backends, clock.accelerator.computing(), probe.case(name):
            import_module(f"gpu.{name}").run(probe)
    finally:
        probe.setting("state at the end", "" if options.toy else gpu_state())
        probe.setting("seconds", round(time.perf_counter() - started, 1))
        probe.finish()


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python benchmarks/gpu_probe.py", description=QUESTION)
    parser.add_argument("name", choices=SECONDS, help="what to measure")
    parser.add_argument("--quick", action="store_true", help="few rounds, for a first look")
    parser.add_argument("--seconds", type=float, default=None, help="when to stop")
    parser.add_argument("--json", type=Path, default=None, help="file for the figures")
    # For tests: sizes that Triton's interpreter can do, on the CPU.
    parser.add_argument("--toy", action="store_true", help=argparse.SUPPRESS)
    return parser.parse_args()


def _clock(*, toy: bool) -> Clock:
    if toy:
        from tests.support.host_accelerator import HostAccelerator

        return HostClock(HostAccelerator())
    torch.cuda.set_device(0)
    return CudaClock(CudaAccelerator(torch.device("cuda", 0)))


def _device_name(probe: Probe) -> str:
    return "CPU" if probe.toy else torch.cuda.get_device_name(probe.device)


def _stop(signum: int, frame: FrameType | None) -> None:
    """What was measured is printed even when somebody has no patience."""
    sys.exit(128 + signum)


if __name__ == "__main__":
    main()
