"""What the device can do at best: copies, reads from memory and from the second-level cache, products."""

from __future__ import annotations

from typing import NamedTuple

import torch

from gpu.clock import Run, forgetting
from gpu.compiling import compile_ahead
from gpu.probe import Probe, gpu_state
from gpu.read_kernel import Reader
from pagemesh.kernels.target import target_of

_BLOCK = 8192
"""Values of a tile that is read."""


class Limits(NamedTuple):
    """Of the device."""

    bytes_per_s: float
    """Read and written together, by torch's copy."""

    flops_per_s: float
    """By torch's product of bfloat16 with random values."""

    def shares(
        self, num_bytes: float, num_flops: float, milliseconds: float
    ) -> tuple[float, float]:
        """Shares of the two that work reaches which takes so long."""
        seconds = milliseconds / 1e3
        return (
            num_bytes / seconds / self.bytes_per_s,
            num_flops / seconds / self.flops_per_s,
        )


def measure_limits(probe: Probe) -> Limits:
    """Both, in half a second."""
    with forgetting():
        return Limits(_copy_rate(probe), _product_rate(probe))


def run(probe: Probe) -> None:
    """All limits."""
    probe.row("limit", "value", "unit")
    limits = measure_limits(probe)
    probe.row("copy, read + written", f"{limits.bytes_per_s / 1e12:.3f}", "TB/s")
    probe.row("product of bfloat16", f"{limits.flops_per_s / 1e12:.1f}", "TFLOP/s")
    with probe.case("torch's sum"), forgetting():
        values = torch.zeros(1 << (16 if probe.toy else 30), device=probe.device)
        rate = _rate(probe, values.nbytes, values.sum)
        probe.figure("read by torch's sum", "TB/s", [rate / 1e12])
        probe.row("read, torch's sum", f"{rate / 1e12:.3f}", "TB/s")
    _read_rates(probe)
    if not probe.toy:
        probe.setting("state after", gpu_state())


def _copy_rate(probe: Probe) -> float:
    num_bytes = 1 << (16 if probe.toy else 31)
    source = torch.zeros(num_bytes, dtype=torch.uint8, device=probe.device)
    target = torch.empty_like(source)
    rate = _rate(probe, 2 * num_bytes, lambda: target.copy_(source))
    probe.figure("copy, read and written", "TB/s", [rate / 1e12])
    return rate


def _product_rate(probe: Probe) -> float:
    size = 64 if probe.toy else 8192
    left, right = torch.randn(2, size, size, device=probe.device).bfloat16().unbind()
    output = torch.empty_like(left)
    rate = _rate(probe, 2.0 * size**3, lambda: torch.mm(left, right, out=output))
    probe.figure(f"product of bfloat16, {size} each way", "TFLOP/s", [rate / 1e12])
    return rate


def _rate(probe: Probe, amount: float, work: Run) -> float:
    """So much per second, by the median of some rounds of four calls."""
    work()
    probe.clock.settle()

    def several() -> None:
        for _ in range(4):
            work()

    several()
    samples = sorted(probe.clock.between_ms(several) / 4 for _ in range(5 if probe.quick else 9))
    return amount / (samples[len(samples) // 2] / 1e3)


def _read_rates(probe: Probe) -> None:
    """Of buffers that the second-level cache holds, and of one that it does not."""
    probe.row("read by a kernel", "TB/s", "programs, stages")
    multiprocessors = 2 if probe.toy else target_of(probe.device).num_multiprocessors
    sizes = (1,) if probe.toy else (20, 10, 40, 2048)
    num_bytes = (1 << 20) if probe.toy else (4 << 30)
    ways = ((1, 2),) if probe.toy else ((2, 4), (3, 4), (4, 3), (4, 1))
    with forgetting():
        buffers = [
            torch.zeros(size << 20 >> 1, dtype=torch.bfloat16, device=probe.device)
            for size in sizes
        ]
        readers = [
            (size, way, Reader(buffer, num_bytes, way[0] * multiprocessors, _BLOCK, way[1]))
            for size, buffer in zip(sizes, buffers, strict=True)
            for way in ways
        ]
        probe.note(compile_ahead([reader for _, _, reader in readers[: len(ways)]]))
        for size, (each, stages), reader in readers:
            if not probe.has_time(1.0):
                return
            name = f"{size} MB, {each} programs each with {stages} stages"
            with probe.case(name):
                rate = _rate(probe, reader.num_bytes, reader)
                probe.figure(f"read by a kernel, {name}", "TB/s", [rate / 1e12])
                probe.row(f"  {size} MB", f"{rate / 1e12:.3f}", f"{each}, {stages}")
