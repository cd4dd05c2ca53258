"""Products with the weights of Llama 3 8B: today's tiles, cuBLAS, and other tiles.

Each figure is of a graph of many calls over several copies of the weight, more than the second-level
cache holds.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from typing import Any, Final, NamedTuple

import torch
import triton

from gpu.clock import forgetting
from gpu.compiling import compile_ahead
from gpu.limits import Limits, measure_limits
from gpu.probe import Probe
from gpu.product_tiles import Change, changes_for
from pagemesh.kernels.gated_activation import Gate
from pagemesh.kernels.linear import Dense, make_gated_linear, make_linear
from pagemesh.kernels.linear.tiles import MOST_SPLIT_TILES, Tiles, num_segments

CALLS: Final = 20
"""Of a graph, for few rows."""

COPIES_BYTES: Final = 400 << 20
"""Copies of a weight take so much together at least, and are twelve at most."""

MOST_OUTPUTS: Final = 1 << 28
"""Of a product; logits of more rows are never asked for."""

ROWS: Final = (1, 64, 16, 8192, 512, 256, 128, 32, 2048)
"""Of today's tiles beside cuBLAS, in this order."""

CHANGED_ROWS: Final = (512, 1, 64, 2048, 256, 32, 128, 16, 8192)
"""Of other tiles."""

Compute = Callable[[torch.Tensor], torch.Tensor]

_CUDA_PRODUCT: Final[Any] = import_module("pagemesh.kernels.linear.cuda_product")
"""Where tiles are chosen: other tiles are put in the place of the choice."""


class Weight(NamedTuple):
    """One of the model's."""

    name: str
    num_outputs: int  # of gates and ups, once
    num_inputs: int
    is_gated: bool = False

    @property
    def num_rows(self) -> int:
        """Of the weight."""
        return self.num_outputs * (2 if self.is_gated else 1)

    @property
    def num_bytes(self) -> int:
        """In bfloat16."""
        return 2 * self.num_rows * self.num_inputs

    @property
    def segments(self) -> int:
        """Into which its inputs are cut."""
        return num_segments(self.num_outputs, self.num_inputs)


WEIGHTS = (
    Weight("gate+up", 14336, 4096, is_gated=True),
    Weight("down", 4096, 14336),
    Weight("qkv", 6144, 4096),
    Weight("o", 4096, 4096),
    Weight("head", 128_256, 4096),
)
TOY_WEIGHTS = (Weight("gate+up", 96, 128, is_gated=True), Weight("o", 64, 1024))


class Maps(NamedTuple):
    """The copies of a weight, ready to be multiplied with."""

    weight: Weight
    ours: Sequence[Compute]
    tensors: Sequence[torch.Tensor]


def run(probe: Probe) -> None:
    """Today's tiles for all rows, then other tiles."""
    limits = measure_limits(probe)
    with forgetting():
        maps = [_make(probe, each) for each in (TOY_WEIGHTS if probe.toy else WEIGHTS)]
        series = Series(probe, limits)
        rows = (1, 20) if probe.toy else ROWS
        jobs = [Job(each, count, None) for count in rows for each in maps]
        probe.note(compile_ahead([job.once(probe) for job in jobs if job.is_sensible]))
        probe.row("rows, weight", "us", "of limit", "cuBLAS us", "ours / cuBLAS", "tiles")
        for job in jobs:
            series.today(job)
        for count in (20,) if probe.toy else CHANGED_ROWS:
            series.changed(maps, count)


def _make(probe: Probe, weight: Weight) -> Maps:
    copies = max(2, min(12, -(-COPIES_BYTES // weight.num_bytes))) if not probe.toy else 2
    shape = (weight.num_rows, weight.num_inputs)
    tensors = [
        torch.empty(shape, dtype=torch.bfloat16, device=probe.device).normal_(0.0, 0.02)
        for _ in range(copies)
    ]
    ours: list[Compute] = []
    for tensor in tensors:
        if weight.is_gated:
            ours.append(make_gated_linear(Dense(tensor), None, Gate("silu")))
        else:
            ours.append(make_linear(Dense(tensor)))
    return Maps(weight, ours, tensors)


class Job(NamedTuple):
    """Products with one weight, for so many rows, with today's tiles or others."""

    maps: Maps
    num_rows: int
    tiles: Tiles | None

    @property
    def name(self) -> str:
        """Rows and weight."""
        return f"{self.num_rows}, {self.maps.weight.name}"

    @property
    def is_sensible(self) -> bool:
        """Whether anybody asks for so many rows."""
        return self.num_rows * self.maps.weight.num_rows <= MOST_OUTPUTS or self.num_rows <= 64

    def inputs(self, probe: Probe) -> torch.Tensor:
        """Random rows, the same each time."""
        generator = torch.Generator(probe.device).manual_seed(self.num_rows)
        shape = (self.num_rows, self.maps.weight.num_inputs)
        return torch.randn(shape, generator=generator, device=probe.device).bfloat16()

    def once(self, probe: Probe) -> Callable[[], object]:
        """One call, for the compiler."""

        def call() -> object:
            with _using(self.tiles):
                return self.maps.ours[0](self.inputs(probe))

        return call


@contextmanager
def _using(tiles: Tiles | None) -> Iterator[None]:
    """Products are cut like this meanwhile; None: as they choose."""
    chosen = _CUDA_PRODUCT.choose_tiles
    if tiles is not None:
        _CUDA_PRODUCT.choose_tiles = lambda *_, **__: tiles
    try:
        yield
    finally:
        _CUDA_PRODUCT.choose_tiles = chosen


@contextmanager
def _watching(found: list[Tiles]) -> Iterator[None]:
    """Note the tiles that are chosen meanwhile."""
    chosen = _CUDA_PRODUCT.choose_tiles

    def choose(*arguments: object, **options: object) -> Tiles:
        tiles: Tiles = chosen(*arguments, **options)
        found.append(tiles)
        return tiles

    _CUDA_PRODUCT.choose_tiles = choose
    try:
        yield
    finally:
        _CUDA_PRODUCT.choose_tiles = chosen


class Series:
    """Measures jobs, and remembers the best of each."""

    def __init__(self, probe: Probe, limits: Limits) -> None:
        self._probe = probe
        self._limits = limits
        self._times: dict[str, float] = {}

    def today(self, job: Job) -> None:
        """Today's tiles, and cuBLAS."""
        if not job.is_sensible or not self._probe.has_time():
            return
        probe, weight = self._probe, job.maps.weight
        with probe.case(job.name):
            inputs = job.inputs(probe)
            found: list[Tiles] = []
            with _watching(found):
                job.maps.ours[0](inputs)
            ours_us = self._time(job, inputs, f"{job.name}: ours")
            self._times[job.name] = ours_us
            transposed = [tensor.t() for tensor in job.maps.tensors]
            theirs = [lambda rows, t=each: torch.mm(rows, t) for each in transposed]
            cublas_us = self._time_all(theirs, inputs, f"{job.name}: cuBLAS")
            share = self._share(job, ours_us)
            probe.figure(f"{job.name}: share of the limit", "", [share])
            ratio = ours_us / cublas_us
            plus = " + gate" if weight.is_gated else ""
            probe.row(
                job.name, f"{ours_us:.1f}", f"{share:.2f}", f"{cublas_us:.1f}{plus}",
                f"{ratio:.2f}", _words(found[0]),
            )  # fmt: skip

    def changed(self, maps: Sequence[Maps], num_rows: int) -> None:
        """Other tiles for so many rows, with a look at their bits."""
        jobs: list[tuple[Change, Job]] = []
        for each in maps:
            job = Job(each, num_rows, None)
            if not job.is_sensible or not self._probe.has_time():
                continue
            with self._probe.case(f"{job.name}: other tiles"):
                found: list[Tiles] = []
                with _watching(found):
                    expected = each.ours[0](job.inputs(self._probe))
                jobs += _candidates(job, found[0], toy=self._probe.toy)
                del expected
        if not jobs:
            return
        self._probe.note(compile_ahead([job.once(self._probe) for _, job in jobs]))
        for change, job in jobs:
            if not self._probe.has_time():
                return
            with self._probe.case(f"{job.name}: {change.name}"):
                self._one_change(change, job)

    def _one_change(self, change: Change, job: Job) -> None:
        probe, inputs = self._probe, job.inputs(self._probe)
        assert job.tiles is not None
        expected = job.maps.ours[0](inputs)
        with _using(job.tiles):
            output = job.maps.ours[0](inputs)
            is_same = torch.equal(output, expected)
            taken_us = self._time(job, inputs, f"{job.name}: {change.name}")
        if not is_same:
            error = float((output.float() - expected.float()).abs().max())
            probe.note(f"{job.name}: {_words(job.tiles)} gives other bits, up to {error:.3g} apart")
        today_us = self._times.get(job.name)
        gain = f"{taken_us / today_us:.2f} of today" if today_us else ""
        bits = "" if is_same else "OTHER BITS"
        share = f"{self._share(job, taken_us):.2f}"
        probe.row(f"  {job.name}", f"{taken_us:.1f}", share, gain, bits, _words(job.tiles))

    def _share(self, job: Job, microseconds: float) -> float:
        """Of the copy's rate for few rows, of the product's for many."""
        weight = job.maps.weight
        num_bytes = weight.num_bytes + 2 * job.num_rows * (weight.num_inputs + weight.num_outputs)
        num_flops = 2.0 * weight.num_rows * weight.num_inputs * job.num_rows
        return max(self._limits.shares(num_bytes, num_flops, microseconds / 1e3))

    def _time(self, job: Job, inputs: torch.Tensor, name: str) -> float:
        return self._time_all(job.maps.ours, inputs, name)

    def _time_all(self, computes: Sequence[Compute], inputs: torch.Tensor, name: str) -> float:
        """Microseconds of a call, by a graph over all copies."""
        num_calls = CALLS if len(inputs) <= 512 else max(4, len(computes))
        if self._probe.toy:
            num_calls = len(computes)

        def work() -> None:
            for index in range(num_calls):
                computes[index % len(computes)](inputs)

        graph = self._probe.clock.capture(work)
        samples = self._probe.clock.replays_ms(graph, self._probe.num_rounds, 0.1)
        microseconds = [1e3 * each / num_calls for each in samples]
        self._probe.figure(name, "us", microseconds)
        return statistics.median(microseconds)


def _candidates(job: Job, today: Tiles, *, toy: bool) -> list[tuple[Change, Job]]:
    """Those that can be launched and differ from today's."""
    weight = job.maps.weight
    changes = changes_for(job.num_rows, is_gated=weight.is_gated)
    found: list[tuple[Change, Job]] = []
    for change in changes[:1] if toy else changes:
        tiles = change.apply(today)
        if weight.segments == 1:
            tiles = tiles._replace(is_split=False)
        num_tiles = triton.cdiv(weight.num_outputs, tiles.block_out)
        num_tiles *= triton.cdiv(job.num_rows, tiles.block_t)
        if tiles.is_split and num_tiles > MOST_SPLIT_TILES:
            continue
        if tiles != today and all(tiles != other.tiles for _, other in found):
            found.append((change, job._replace(tiles=tiles)))
    return found


def _words(tiles: Tiles) -> str:
    """Tiles as the table has them."""
    split = " split" if tiles.is_split else ""
    return (
        f"{tiles.block_out}x{tiles.block_t}x{tiles.block_k}"
        f" w{tiles.num_warps} s{tiles.num_stages}{split}"
    )
