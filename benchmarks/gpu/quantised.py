"""Products with quantised weights: each kind beside bfloat16, with matrices of Llama 3 8B.

Each figure is of a graph of many calls over several copies of the weight, more than the second-level cache holds in
whatever the copies are kept.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import Final, NamedTuple

import torch

from gpu.clock import forgetting
from gpu.compiling import compile_ahead
from gpu.limits import Limits, measure_limits
from gpu.probe import Probe
from pagemesh.kernels.gated_activation import Gate
from pagemesh.kernels.linear import Dense, make_gated_linear, make_linear
from pagemesh.kernels.linear.weight import Plain
from tests.support.random_weights import random_like
from tools.kernel_cases.case import meta
from tools.kernel_cases.linear import WEIGHTS

CALLS: Final = 20
COPIES_BYTES: Final = 400 << 20
"""Copies of a weight take so much together at least, and are 24 at most."""

ROWS: Final = (1, 64, 512, 16, 2048)
"""In this order."""

Compute = Callable[[torch.Tensor], torch.Tensor]


class Matrix(NamedTuple):
    """One of the model's."""

    name: str
    num_rows: int  # of the weight
    num_inputs: int
    is_gated: bool = False


MATRICES: Final = (Matrix("gate+up", 28672, 4096, is_gated=True), Matrix("down", 4096, 14336))
TOY_MATRICES: Final = (Matrix("gate+up", 128, 256, is_gated=True), Matrix("down", 64, 512))


def dense(*shape: int) -> Dense:
    """In bfloat16."""
    return Dense(meta(*shape))


KINDS: Final[Mapping[str, Callable[..., Plain]]] = {"bfloat16": dense, **WEIGHTS}


def run(probe: Probe) -> None:
    """All kinds for one number of rows, then for the next."""
    limits = measure_limits(probe)
    probe.row("rows, matrix, kind", "us", "of limit", "/ bfloat16")
    times: dict[tuple[int, str], float] = {}
    for num_rows in (1, 20) if probe.toy else ROWS:
        for matrix in TOY_MATRICES if probe.toy else MATRICES:
            for kind, make in KINDS.items():
                if not probe.has_time(1.0):
                    return
                name = f"{num_rows}, {matrix.name}, {kind}"
                with probe.case(name), forgetting():
                    weight = make(matrix.num_rows, matrix.num_inputs)
                    computes = copies(probe, weight, is_gated=matrix.is_gated)
                    taken_us = _time(probe, computes, num_rows, matrix.num_inputs, name)
                    share = _share(limits, weight, num_rows, taken_us)
                    probe.figure(f"{name}: share of the limit", "", [share])
                    times.setdefault((num_rows, matrix.name), taken_us)
                    ratio = taken_us / times[num_rows, matrix.name]
                    probe.row(name, f"{taken_us:.1f}", f"{share:.2f}", f"{ratio:.2f}")


def copies(probe: Probe, weight: Plain, *, is_gated: bool) -> list[Compute]:
    """Products with copies of a weight, whose tensors have shapes and no memory, of random numbers."""
    number = 2 if probe.toy else max(2, min(24, -(-COPIES_BYTES // weight.num_bytes)))
    made: list[Compute] = []
    for _ in range(number):
        filled = weight.moved(lambda tensor: random_like(tensor, probe.device))
        if is_gated:
            made.append(make_gated_linear(filled, None, Gate("silu")))
        else:
            made.append(make_linear(filled))
    return made


def _time(
    probe: Probe, computes: Sequence[Compute], num_rows: int, num_inputs: int, name: str
) -> float:
    """Microseconds of a call, by a graph over all copies."""
    generator = torch.Generator(probe.device).manual_seed(num_rows)
    inputs = torch.randn(num_rows, num_inputs, generator=generator, device=probe.device).bfloat16()
    num_calls = len(computes) if probe.toy else CALLS if num_rows <= 512 else len(computes)
    probe.note(compile_ahead([lambda: computes[0](inputs)]))

    def work() -> None:
        for index in range(num_calls):
            computes[index % len(computes)](inputs)

    graph = probe.clock.capture(work)
    samples = probe.clock.replays_ms(graph, probe.num_rounds, 0.1)
    microseconds = [1e3 * each / num_calls for each in samples]
    probe.figure(name, "us", microseconds)
    return statistics.median(microseconds)


def _share(limits: Limits, weight: Plain, num_rows: int, microseconds: float) -> float:
    """Of the copy's rate for few rows, of the product's in bfloat16 for many."""
    num_outputs, num_inputs = weight.shape
    num_bytes = weight.num_bytes + 2 * num_rows * (num_inputs + num_outputs)
    num_flops = 2.0 * num_outputs * num_inputs * num_rows
    return max(limits.shares(num_bytes, num_flops, microseconds / 1e3))
