"""Whole steps of the real runner: captured decodes, sampling, what the host adds, and eager steps."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

from gpu.batches import FLAT_TOP_P, GREEDY, TOP_P, decode_batch, decodes, prompt
from gpu.clock import forgetting
from gpu.compiling import compile_ahead
from gpu.limits import Limits, measure_limits
from gpu.model import LLAMA_8B, QWEN_30B, Subject, sizes_of
from gpu.probe import Probe
from pagemesh.engine.accelerator import Graph
from pagemesh.engine.runner import LayerProgress, compute_step
from pagemesh.sampling.params import SamplingParams
from pagemesh.scheduler.batch import Batch

MIXTURE_S = 40.0
"""What the mixture takes at the end, to be made, compiled and measured."""


class Sizes(NamedTuple):
    """Of what is measured."""

    rows: tuple[int, ...]
    contexts: tuple[int, ...]
    late_rows: tuple[int, ...]  # only with the first context, and last
    chunks: tuple[int, ...]  # prompts of eager steps
    mixed: tuple[int, int]  # decodes and prompt tokens of one step
    max_model_len: int


REAL = Sizes((1, 64, 8, 16, 32), (512, 4096), (128, 256), (2048, 8192), (64, 512), 8192)
TOY = Sizes((1, 4), (20, 40), (5,), (24,), (2, 9), 64)


def run(probe: Probe) -> None:
    """A dense model, then a mixture."""
    sizes = TOY if probe.toy else REAL
    limits = measure_limits(probe)
    probe.row("step", "graph ms", "step ms", "alone ms", "host ms", "of copy")
    with forgetting(), probe.case("Llama 3 8B"):
        _dense(probe, sizes, limits)
    if probe.has_time(0.0 if probe.toy else MIXTURE_S / 2):
        with forgetting(), probe.case("Qwen 3 30B-A3B"):
            _mixture(probe, sizes, limits)


def make_dense(probe: Probe, sizes: Sizes) -> Subject:
    """Llama 3 8B's shape with room for all rows, and its kernels compiled."""
    started = time.perf_counter()
    most_rows = max(sizes.rows + sizes.late_rows)
    num_tokens = max(max(sizes.rows) * max(sizes.contexts), most_rows * sizes.contexts[0])
    subject = Subject(
        sizes_of(LLAMA_8B, toy=probe.toy),
        probe.clock.accelerator,
        num_blocks=num_tokens // 16 + most_rows + 1,
        max_num_seqs=most_rows,
        max_num_batched_tokens=max(sizes.chunks),
        max_model_len=sizes.max_model_len,
    )
    probe.figure("8B: made", "s", [time.perf_counter() - started])
    return subject


def _dense(probe: Probe, sizes: Sizes, limits: Limits) -> None:
    subject = make_dense(probe, sizes)
    warm(probe, subject, sizes)
    series = Series(probe, "8B", subject, limits)
    decode_rows, chunk = sizes.mixed
    # What a short answer to a cached prompt needs, and a chunk.
    mixed_sizes = (decode_rows + chunk // 8, decode_rows + chunk)
    series.capture(sorted(sizes.rows + sizes.late_rows), mixed_sizes)
    first, *more = sizes.contexts
    for rows in sizes.rows[:2]:
        series.decode(rows, first, GREEDY, "greedy")
    for rows in sizes.rows[:2]:
        series.decode(rows, first, TOP_P, "top-p")
    first_block = decode_rows * -(-first // subject.block_size)
    for num_tokens in (chunk, chunk // 8):
        mixed = decodes(subject, decode_rows, first, GREEDY)
        mixed.append(prompt(subject, num_tokens, GREEDY, first_block=first_block))
        for measure in (series.captured, series.eager):
            measure(Batch(mixed), f"{decode_rows} decodes + {num_tokens} tokens")
    series.eager(Batch([prompt(subject, sizes.chunks[0], GREEDY)]), f"{sizes.chunks[0]} tokens")
    for context in more:
        series.decode(sizes.rows[1], context, GREEDY, "greedy")
        series.decode(sizes.rows[0], context, GREEDY, "greedy")
    for chunk in sizes.chunks[1:]:
        series.eager(Batch([prompt(subject, chunk, GREEDY)]), f"{chunk} tokens")
    for rows in sizes.rows[2:]:
        series.decode(rows, first, GREEDY, "greedy")
    for rows in sizes.rows[:2]:
        series.decode(rows, first, FLAT_TOP_P, "flat top-p")
    for rows in sizes.late_rows:
        series.decode(rows, first, GREEDY, "greedy")
    for context in more:
        for rows in sizes.rows[2:]:
            series.decode(rows, context, GREEDY, "greedy")


def _mixture(probe: Probe, sizes: Sizes, limits: Limits) -> None:
    context, rows = sizes.contexts[0], sizes.rows[:2]
    started = time.perf_counter()
    subject = Subject(
        sizes_of(QWEN_30B, toy=probe.toy),
        probe.clock.accelerator,
        num_blocks=max(rows) * (context // 16 + 2),
        max_num_seqs=max(rows),
        max_num_batched_tokens=max(rows),
        max_model_len=sizes.max_model_len,
    )
    probe.figure("30B-A3B: made", "s", [time.perf_counter() - started])
    batches = [decode_batch(subject, each, context, GREEDY) for each in rows]
    _compile(probe, subject, batches)
    series = Series(probe, "30B-A3B", subject, limits)
    series.capture(sorted(rows))
    for each in rows:
        series.decode(each, context, GREEDY, "greedy")


def warm(probe: Probe, subject: Subject, sizes: Sizes) -> None:
    """Compile and load what the steps need."""
    context = sizes.contexts[0]
    rows = sorted({*sizes.rows, *sizes.late_rows})
    batches = [decode_batch(subject, each, context, TOP_P) for each in rows]
    batches += [Batch([prompt(subject, each, TOP_P)]) for each in sizes.chunks[:1]]
    _compile(probe, subject, batches)


def _compile(probe: Probe, subject: Subject, batches: Sequence[Batch]) -> None:
    def dummy_run(batch: Batch) -> Callable[[], object]:
        return lambda: compute_step(subject.runner, batch)

    probe.note(compile_ahead([dummy_run(batch) for batch in batches]))
    started = time.perf_counter()
    for batch in batches:
        compute_step(subject.runner, batch)
    probe.figure("steps run for the first time", "s", [time.perf_counter() - started])


class Series:
    """Measures one model's steps."""

    def __init__(self, probe: Probe, name: str, subject: Subject, limits: Limits) -> None:
        self._probe = probe
        self._name = name
        self._subject = subject
        self._limits = limits
        self._graphs: dict[int, Graph] = {}

    def capture(self, sizes: Sequence[int], chunk_sizes: Sequence[int] = ()) -> None:
        """All sizes at once, as an engine does."""
        with self._probe.case(f"{self._name}: capture"):
            started = time.perf_counter()
            self._graphs = self._subject.capture(sizes, chunk_sizes)
            seconds = time.perf_counter() - started
            self._probe.figure(f"{self._name}: {len(self._graphs)} graphs captured", "s", [seconds])

    def decode(self, rows: int, context: int, sampling: SamplingParams, kind: str) -> None:
        """A captured decode: its graph, whole steps behind each other, and one at a time."""
        probe, name = self._probe, f"{self._name}, {rows} x {context}, {kind}"
        if not probe.has_time():
            return
        if rows * -(-context // self._subject.block_size) > self._subject.num_blocks:
            probe.note(f"{name}: the cache is too small")
            return
        with probe.case(name):
            batch = decode_batch(self._subject, rows, context, sampling)
            error = next(iter(compute_step(self._subject.runner, batch).errors.values()), None)
            if error is not None:
                probe.note(f"{name}: {error}")
            compute_step(self._subject.runner, batch)
            graph_ms = probe.figure(
                f"{name}: graph",
                "ms",
                probe.clock.replays_ms(self._graphs[rows], probe.num_rounds),
            )
            following_ms = probe.figure(
                f"{name}: step, overlapped", "ms", self._overlapped(rows, context, sampling)
            )
            alone, hosts = self._alone(batch)
            alone_ms = probe.figure(f"{name}: step, one at a time", "ms", alone)
            host_ms = probe.figure(f"{name}: host, launch and sample", "ms", hosts)
            num_bytes = self._subject.weight_bytes(rows) + self._subject.kv_bytes(rows * context)
            share, _ = self._limits.shares(num_bytes, 0.0, graph_ms)
            probe.figure(f"{name}: graph, share of copy", "", [share])
            outside = 1.0 - graph_ms / following_ms
            probe.figure(f"{name}: overlapped step outside the graph", "", [outside])
            times = (f"{ms:.3f}" for ms in (graph_ms, following_ms, alone_ms, host_ms))
            probe.row(name, *times, f"{share:.2f}")

    def eager(self, batch: Batch, kind: str) -> None:
        """A step whose kernels are started one by one, as all are whose layers somebody watches."""
        self._step(
            batch, f"{self._name}, eager, {kind}", LayerProgress(frozenset(), lambda _: None)
        )

    def captured(self, batch: Batch, kind: str) -> None:
        """The same step, as it was captured."""
        self._step(batch, f"{self._name}, captured, {kind}", None)

    def _step(self, batch: Batch, name: str, watch: LayerProgress | None) -> None:
        probe, runner = self._probe, self._subject.runner
        if not probe.has_time():
            return
        with probe.case(name):
            for _ in range(2):
                step = runner.launch(batch, watch)
                step.sample()
                step.result()

            def launch() -> None:
                step = runner.launch(batch, watch)
                step.sample()
                pending.append(step)

            count = 3 if probe.quick else 5
            pending: list[object] = []
            hosts, walls = [], []
            for _ in range(count):
                started = time.perf_counter()
                step = runner.launch(batch, watch)
                launched = time.perf_counter()
                step.sample()
                step.result()
                walls.append((time.perf_counter() - started) * 1e3)
                hosts.append((launched - started) * 1e3)
            host_ms = probe.figure(f"{name}: host until launched", "ms", hosts)
            wall_ms = probe.figure(f"{name}: step", "ms", walls)
            sleep_s = min(2.5 * host_ms / 1e3 + 0.005, 0.2)
            device = [probe.clock.queued_ms(launch, sleep_s) for _ in range(count)]
            device_ms = probe.figure(f"{name}: device alone", "ms", device)
            num_flops = 2.0 * batch.num_tokens * self._subject.num_layer_weights()
            _, share = self._limits.shares(0.0, num_flops, device_ms)
            probe.figure(f"{name}: device, share of the product's rate", "", [share])
            probe.row(
                name, f"{device_ms:.3f}", "", f"{wall_ms:.3f}", f"{host_ms:.3f}", f"{share:.2f} F"
            )

    def _overlapped(self, rows: int, context: int, sampling: SamplingParams) -> list[float]:
        """Milliseconds from step to step when each is launched before the last one is read."""
        runner = self._subject.runner
        first = decode_batch(self._subject, rows, context, sampling)
        later = decode_batch(self._subject, rows, context, sampling, unknown=True)
        before = runner.launch(first)
        before.sample()
        samples, begun = [], time.perf_counter()
        for index in range(12 if self._probe.quick else 40):
            started = time.perf_counter()
            step = runner.launch(later)
            step.sample()
            before.result()
            before = step
            if index >= 3:
                samples.append((time.perf_counter() - started) * 1e3)
            if index >= 8 and time.perf_counter() - begun > 0.7:
                break
        before.result()
        # The mean: a step that is late makes the next one look short.
        return [statistics.fmean(samples)]

    def _alone(self, batch: Batch) -> tuple[list[float], list[float]]:
        """Milliseconds of whole steps, and of the host until everything was asked for."""
        runner, walls, hosts = self._subject.runner, [], []
        for _ in range(8 if self._probe.quick else 20):
            started = time.perf_counter()
            step = runner.launch(batch)
            step.sample()
            asked = time.perf_counter()
            step.result()
            walls.append((time.perf_counter() - started) * 1e3)
            hosts.append((asked - started) * 1e3)
            if len(walls) >= 5 and sum(walls) > 400.0:
                break
        return walls, hosts
