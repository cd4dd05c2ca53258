"""Which kernels a step is made of, by torch's profiler: one decode of 1 and of 64 rows, and one prompt."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from functools import partial
from typing import Any

from torch._C._autograd import DeviceType
from torch.profiler import ProfilerActivity, profile

from gpu.batches import GREEDY, TOP_P, decode_batch, prompt
from gpu.probe import Probe
from gpu.step import REAL, TOY, Sizes, make_dense, warm
from pagemesh.engine.runner import compute_step
from pagemesh.scheduler.batch import Batch

MOST_NAMES = 45
NAME_LENGTH = 90


def run(probe: Probe) -> None:
    """Captured decodes, then an eager step."""
    sizes = TOY if probe.toy else REAL._replace(rows=(1, 64), contexts=(512,), late_rows=())
    subject = make_dense(probe, sizes)
    warm(probe, subject, sizes)
    graphs = subject.capture(sorted(sizes.rows))
    probe.row("step", "kernels", "busy us", "span us", "gaps")
    for rows in sizes.rows:
        batch = decode_batch(subject, rows, sizes.contexts[0], GREEDY)
        if not probe.has_time():
            return
        with probe.case(f"{rows} rows"):
            compute_step(subject.runner, batch)
            _profile(probe, f"replay of {rows} rows", graphs[rows].replay)
    _eager(probe, sizes, subject.runner, Batch([prompt(subject, sizes.chunks[0], GREEDY)]))
    for rows in sizes.rows:
        sampled = decode_batch(subject, rows, sizes.contexts[0], TOP_P)
        if not probe.has_time():
            return
        with probe.case(f"{rows} rows, sampled"):
            compute_step(subject.runner, sampled)
            work = partial(compute_step, subject.runner, sampled)
            _profile(probe, f"step of {rows} rows with top-p", work)


def _eager(probe: Probe, sizes: Sizes, runner: Any, batch: Batch) -> None:
    if not probe.has_time():
        return
    with probe.case("prompt"):
        compute_step(runner, batch)
        name = f"eager prompt of {sizes.chunks[0]}"
        _profile(probe, name, lambda: compute_step(runner, batch))


def _profile(probe: Probe, name: str, work: Callable[[], object]) -> None:
    """Print and write the table of one run; the run before it warms the profiler."""
    probe.clock.settle()
    kernels: list[Any] = []
    for _ in range(2):
        with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as found:
            with probe.clock.accelerator.computing():
                work()
            probe.clock.settle()
        kernels = [event for event in found.events() or () if _is_kernel(event, toy=probe.toy)]
    text = _table(name, kernels)
    path = probe.path.with_name(f"{probe.path.stem}_{name.replace(' ', '_')}.txt")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    print(text, flush=True)
    if not kernels:
        probe.note(f"{name}: the profiler saw no kernels")
        return
    busy = sum(event.time_range.elapsed_us() for event in kernels)
    begin = min(event.time_range.start for event in kernels)
    span = max(event.time_range.end for event in kernels) - begin
    probe.figure(f"{name}: kernels", "", [len(kernels)])
    probe.figure(f"{name}: busy", "us", [busy])
    probe.figure(f"{name}: from first to last", "us", [span])
    probe.row(name, len(kernels), f"{busy:.0f}", f"{span:.0f}", f"{1 - busy / span:.2f}")


def _is_kernel(event: Any, *, toy: bool) -> bool:
    """On a CPU there are none: any event will do for a look at the table."""
    return bool(event.device_type == (DeviceType.CPU if toy else DeviceType.CUDA))


def _table(name: str, kernels: list[Any]) -> str:
    """Calls and time by name, the longest first."""
    times: dict[str, list[float]] = defaultdict(list)
    for event in kernels:
        times[event.name].append(event.time_range.elapsed_us())
    ordered = sorted(times.items(), key=lambda item: -sum(item[1]))
    lines = [f"\n{name}", f"{'us':>10} {'calls':>6} {'us each':>9}  kernel"]
    for kernel, each in ordered[:MOST_NAMES]:
        total = sum(each)
        lines.append(
            f"{total:10.1f} {len(each):6d} {total / len(each):9.2f}  {kernel[:NAME_LENGTH]}"
        )
    total = sum(map(sum, times.values()))
    lines.append(f"{total:10.1f} {len(kernels):6d}            all\n")
    return "\n".join(lines)
