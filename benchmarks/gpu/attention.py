"""Attention with Llama 3 8B's heads: decodes of several lengths in other tiles, and whole prompts.

Each figure is of a graph of calls over several copies of the keys and values where one would fit the
second-level cache. Beside it stands torch's attention over keys and values that lie densely, gathered
already.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch.nn import functional

from gpu.clock import forgetting
from gpu.compiling import compile_ahead
from gpu.limits import Limits, measure_limits
from gpu.probe import Probe
from gpu.prompt_attention import (
    BLOCK,
    HEAD_DIM,
    HEADS,
    KV_HEADS,
    measure_prompt,
    measure_segments,
    random_values,
)
from pagemesh.kernels.kv_scales import FP8, KvScales
from pagemesh.kernels.paged_attention import (
    AttentionShape,
    Capacity,
    LayerAttention,
    PagedSequence,
)
from pagemesh.kernels.paged_attention.cuda import CudaPagedAttention
from pagemesh.kernels.paged_attention.cuda_kernels import Tiling, tiling_of
from pagemesh.kernels.target import target_of

COPIES_BYTES = 200 << 20
"""Keys and values of a graph, at least."""

MOST_COPIES = 32


class Size(NamedTuple):
    """Of a batch of decodes."""

    num_rows: int
    context: int


SEGMENT_SIZES = (Size(1, 512), Size(8, 512), Size(64, 512), Size(1, 2048), Size(8, 8192))
"""Of which some gain by short segments and others by long ones."""

SIZES = (
    Size(64, 8192),
    Size(1, 8192),
    Size(64, 1024),
    Size(8, 8192),
    Size(1, 32768),
    Size(8, 32768),
    Size(1, 1024),
    Size(8, 1024),
    Size(64, 32768),
)
"""The most telling first."""

TOY_SIZES = (Size(2, 40),)

SEGMENT_KEYS = (128, 256, 512, 1024, 2048)
"""Lengths of segments to compare."""


class Way(NamedTuple):
    """One way to cut the work."""

    name: str
    tiling: Tiling


def run(probe: Probe) -> None:
    """Other segments, then decodes in bfloat16 with today's tiles, a prompt, FP8, other tiles."""
    limits = measure_limits(probe)
    probe.row("batch x context", "us", "of limit", "torch us", "tiles")
    sizes = TOY_SIZES if probe.toy else SIZES
    series = Series(probe, limits)
    lengths = SEGMENT_KEYS[:1] if probe.toy else SEGMENT_KEYS
    for size in TOY_SIZES if probe.toy else SEGMENT_SIZES:
        series.segments(size, lengths)
    with forgetting(), probe.case("prompt with other segments"):
        measure_segments(probe, limits, 24 if probe.toy else 2048, lengths)
    for size in sizes[:4]:
        series.decodes(size, torch.bfloat16, only_today=True, with_torch=True)
    with forgetting(), probe.case("prompt"):
        measure_prompt(probe, limits, 24 if probe.toy else 8192)
    for size in sizes[:3]:
        series.decodes(size, torch.bfloat16, skips_today=True)
    for size in sizes[:3]:
        series.decodes(size, FP8)
    for size in sizes[4:]:
        series.decodes(size, torch.bfloat16, with_torch=True)
    for size in sizes[3:]:
        series.decodes(size, FP8, only_today=True)


class Cache:
    """Copies of the keys and values of a batch, in scattered blocks."""

    def __init__(self, probe: Probe, size: Size, dtype: torch.dtype) -> None:
        blocks_each = -(-size.context // BLOCK)
        num_blocks = size.num_rows * blocks_each
        self.num_bytes = 2 * size.num_rows * size.context * KV_HEADS * HEAD_DIM * dtype.itemsize
        copies = max(1, min(MOST_COPIES, -(-COPIES_BYTES // self.num_bytes)))
        shape = (2, num_blocks, BLOCK, KV_HEADS, HEAD_DIM)
        self.layers = [
            random_values(shape, dtype, probe.device) for _ in range(1 if probe.toy else copies)
        ]
        tables = torch.randperm(num_blocks).view(size.num_rows, blocks_each).tolist()
        self.sequences = [PagedSequence(1, size.context, table) for table in tables]
        self.shape = AttentionShape(
            HEADS, KV_HEADS, HEAD_DIM, num_blocks, BLOCK, torch.bfloat16, kv_dtype=dtype
        )
        scales = None
        if dtype == FP8:
            keys, values = torch.ones(2, KV_HEADS, device=probe.device).unbind()
            scales = KvScales(keys, values)
        self.features = LayerAttention(HEAD_DIM**-0.5, kv_scales=scales)
        self.query = random_values((size.num_rows, HEADS, HEAD_DIM), torch.bfloat16, probe.device)

    def calls(self, probe: Probe, tiling: Tiling) -> Callable[[], object]:
        """Attention of all copies, one after the other."""
        attention = CudaPagedAttention(self.shape, probe.device, tiling)
        plan = attention.make_reusable(
            Capacity(len(self.sequences), self.shape.num_blocks), [self.features]
        )
        plan.refill(self.sequences)

        def work() -> object:
            for layer in self.layers:
                output = plan.attend(self.query, layer, self.features)
            return output

        return work

    def calls_of_torch(self) -> Callable[[], object]:
        """The heads of a group as queries of one kv head."""
        num_rows = len(self.sequences)
        query = self.query.view(num_rows, KV_HEADS, HEADS // KV_HEADS, HEAD_DIM)
        dense = [
            [half.view(num_rows, -1, KV_HEADS, HEAD_DIM).transpose(1, 2) for half in layer]
            for layer in self.layers
        ]

        def work() -> object:
            for keys, values in dense:
                output = functional.scaled_dot_product_attention(query, keys, values)
            return output

        return work


class Series:
    """Measures decodes."""

    def __init__(self, probe: Probe, limits: Limits) -> None:
        self._probe = probe
        self._limits = limits

    def segments(self, size: Size, lengths: Sequence[int]) -> None:
        """One size with segments of each length."""
        probe, name = self._probe, f"{size.num_rows} x {size.context} segments"
        if not probe.has_time(1.0):
            return
        with forgetting(), probe.case(name):
            cache = Cache(probe, size, torch.bfloat16)
            today = tiling_of(cache.shape, target_of(probe.device))
            tilings = [today, *(today._replace(segment_keys=length) for length in lengths)]
            works = [(_words(each), cache.calls(probe, each)) for each in dict.fromkeys(tilings)]
            probe.note(compile_ahead([work for _, work in works]))
            self._measure(cache, name, [(way, work, "") for way, work in works])

    def decodes(
        self,
        size: Size,
        dtype: torch.dtype,
        *,
        only_today: bool = False,
        skips_today: bool = False,
        with_torch: bool = False,
    ) -> None:
        """One size with the ways that are asked for."""
        probe = self._probe
        kind = "FP8" if dtype == FP8 else "bf16"
        name = f"{size.num_rows} x {size.context} {kind}"
        if not probe.has_time(1.0):
            return
        with forgetting(), probe.case(name):
            cache = Cache(probe, size, dtype)
            ways = _ways(cache.shape, probe)
            ways = ways[:1] if only_today else ways[1:] if skips_today else ways
            if probe.toy:
                ways = ways[:2]
            works = [(way, cache.calls(probe, way.tiling)) for way in ways]
            if not only_today:
                probe.note(compile_ahead([work for _, work in works]))
            theirs = ""
            if with_torch:
                with probe.case(f"{name}: torch"):
                    taken_us = self._time(cache, cache.calls_of_torch(), f"{name}: torch")
                    theirs = f"{taken_us:.1f}"
            self._measure(cache, name, [(way.name, work, theirs) for way, work in works])

    def _measure(
        self, cache: Cache, name: str, works: list[tuple[str, Callable[[], object], str]]
    ) -> None:
        """Each way's time and share of the limit; beside it torch's time."""
        probe = self._probe
        for way, work, theirs in works:
            if not probe.has_time():
                return
            with probe.case(f"{name}: {way}"):
                taken_us = self._time(cache, work, f"{name}: {way}")
                share, _ = self._limits.shares(cache.num_bytes, 0.0, taken_us / 1e3)
                probe.figure(f"{name}: {way}, share of copy", "", [share])
                probe.row(name, f"{taken_us:.1f}", f"{share:.2f}", theirs, way)

    def _time(self, cache: Cache, work: Callable[[], object], name: str) -> float:
        """Microseconds of one layer."""
        probe = self._probe
        graph = probe.clock.capture(work)
        samples = probe.clock.replays_ms(graph, probe.num_rounds, 0.15)
        microseconds = [1e3 * each / len(cache.layers) for each in samples]
        probe.figure(name, "us", microseconds)
        return statistics.median(microseconds)


def _ways(shape: AttentionShape, probe: Probe) -> list[Way]:
    """Today's tiles first; others have the tile of decodes with other depths, or tiles of more keys."""
    today = tiling_of(shape, target_of(probe.device))
    few = today.few
    ways = [Way(_words(today), today)]
    changed = [today._replace(few=few._replace(num_stages=stages)) for stages in (2, 3, 4)]
    for count in (1, 3):
        stages = 4 if count == 1 else 2
        tile = few._replace(num_stages=stages, programs_per_multiprocessor=count)
        changed.append(today._replace(few=tile))
    changed.append(today._replace(num_keys=128, few=few._replace(num_stages=2)))
    for tiling in changed:
        if all(tiling != way.tiling for way in ways):
            ways.append(Way(_words(tiling), tiling))
    return ways


def _words(tiling: Tiling) -> str:
    """What a tiling has for decodes."""
    few = tiling.few
    return (
        f"{few.num_rows}x{tiling.num_keys} w{few.num_warps} s{few.num_stages}"
        f" p{few.programs_per_multiprocessor} seg{tiling.segment_keys}"
    )
