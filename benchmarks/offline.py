"""How fast is the engine without services, beside other engines on the same machine in the same run?"""

from __future__ import annotations

import os
import time
from collections import defaultdict
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from itertools import count
from pathlib import Path

from engine_process import SETTLE_S, EngineProcess, EngineSettings
from peers import OURS, PEERS, start, start_checkout, versions_of
from random_models import SHAPES, make_model
from report import Report, choice, make_parser
from scheduler_alone import step_times_ms, wasted_slots_percent
from shared_prefix import compare_sharing
from static_batching import compare_batching
from workload import Request, make_prompt, make_requests

QUESTION = "Throughput and latency of the engine alone, for models with random weights"
SEED = 7
STATIC_BATCH = 16
STREAM = (128, 64)
"""Prompt and answer of a request that runs alone, in tokens."""
LONG_PROMPT = 1024
NUM_RUNNING = 256
BASELINE = "baseline"
"""The engine of another checkout."""

Samples = dict[str, list[float]]
"""By figure."""


@dataclass(frozen=True)
class Size:
    """How much is measured with a model, so that it takes minutes and not hours."""

    num_rounds: int

    num_requests: int
    """Of the mixed workload, in each round."""

    max_tokens: int
    """Longer answers of it are cut: one that goes on alone tells about one stream, not about throughput."""

    num_batches: int
    """Static batches that are compared with continuous batching; with none, the comparison is left out."""

    num_sharing: int
    """Requests that share a prefix; with none, that comparison is left out."""


SIZES = {
    "10M": Size(3, 128, 512, 4, 64),
    "160M": Size(3, 64, 512, 3, 64),
    "1B": Size(2, 16, 128, 0, 0),
}
QUICK = {
    "10M": Size(1, 32, 512, 2, 64),
    "160M": Size(1, 16, 512, 2, 16),
    "1B": Size(1, 8, 64, 0, 0),
}


class Measurement:
    """The rounds of one engine with one model."""

    def __init__(self, engine: EngineProcess, model: str, requests: Sequence[Request]) -> None:
        self._engine = engine
        self._vocab_size = SHAPES[model].vocab_size
        self._requests = requests
        self._seeds = count(SEED + 1)
        self.samples: Samples = defaultdict(list)

    def warm_up(self) -> None:
        """What happens only once in a process is no part of a round."""
        self._engine.generate(self._requests[:2])
        self._engine.generate([self._fresh(STREAM[0], 2)])

    def round(self) -> None:
        """Every figure once."""
        time.sleep(SETTLE_S)
        # The same prompts in every round would be in the prefix cache.
        requests = [
            request._replace(prompt=self._fresh(len(request.prompt), 0).prompt)
            for request in self._requests
        ]
        answer = self._engine.generate(requests)
        self.samples["throughput, tokens/s"].append(answer.num_tokens / answer.seconds)
        stream = self._fresh(*STREAM)
        first = self._engine.generate([stream._replace(num_tokens=1)]).seconds
        whole = self._engine.generate([self._fresh(*STREAM)]).seconds
        self.samples["one stream, ms/token"].append((whole - first) * 1e3 / (STREAM[1] - 1))
        prompt = self._fresh(LONG_PROMPT, 1)
        cold = self._engine.generate([prompt]).seconds
        # transformers keeps the KV of a prompt only when the answer goes on after its first token.
        self._engine.generate([prompt._replace(num_tokens=2)])
        cached = self._engine.generate([prompt]).seconds
        self.samples[f"TTFT {LONG_PROMPT} cold, ms"].append(cold * 1e3)
        self.samples[f"TTFT {LONG_PROMPT} cached, ms"].append(cached * 1e3)

    def end(self) -> None:
        """What can be said once all rounds are over."""
        self.samples["ready, s"] = [self._engine.ready_s]
        self.samples["memory, MB"] = [self._engine.memory_mb()]

    def _fresh(self, num_prompt_tokens: int, num_tokens: int) -> Request:
        prompt = make_prompt(num_prompt_tokens, self._vocab_size, next(self._seeds))
        return Request(prompt, num_tokens)


def compare(
    model: str, engines: Sequence[str], threads: int, size: Size, baseline: Path | None
) -> dict[str, Samples]:
    """Samples by engine; rounds are interleaved, so that a noisy minute disturbs all alike."""
    settings = EngineSettings(str(make_model(model)), threads)
    requests = [
        one._replace(num_tokens=min(one.num_tokens, size.max_tokens))
        for one in make_requests(size.num_requests, SHAPES[model].vocab_size, SEED)
    ]
    with ExitStack() as stack:
        measurements = {
            name: Measurement(stack.enter_context(start(name, settings)), model, requests)
            for name in engines
        }
        if baseline is not None:
            engine = stack.enter_context(start_checkout(baseline, settings))
            measurements[BASELINE] = Measurement(engine, model, requests)
        for measurement in measurements.values():
            measurement.warm_up()
        for _ in range(size.num_rounds):
            for measurement in measurements.values():
                measurement.round()
        for measurement in measurements.values():
            measurement.end()
    return {name: measurement.samples for name, measurement in measurements.items()}


def batching(model: str, threads: int, size: Size) -> dict[str, list[float]]:
    """Tokens per second by the way of batching."""
    settings = EngineSettings(str(make_model(model)), threads, max_num_seqs=STATIC_BATCH)
    with start(OURS, settings) as engine:
        engine.generate(make_requests(2, SHAPES[model].vocab_size, SEED))
        return compare_batching(
            engine, SHAPES[model].vocab_size, STATIC_BATCH, size.num_batches, size.num_rounds
        )


def main() -> None:
    """Measure what was asked for, print it and write it down."""
    parser = make_parser("offline", QUESTION)
    parser.add_argument("--models", default="", help=f"some of {','.join(SHAPES)} (default: all)")
    known = [name for name, peer in PEERS.items() if peer.runs_dense]
    parser.add_argument("--peers", default="", help=f"some of {','.join(known)} (default: none)")
    help_text = (
        "folder of another checkout, with its .venv, whose engine is measured beside this one"
    )
    parser.add_argument("--baseline", type=Path, help=help_text)
    parser.add_argument("--rounds", type=int, help="how often each engine is measured")
    options = parser.parse_args()
    quick: bool = options.quick
    baseline: Path | None = options.baseline
    models = choice(options.models, SHAPES) or (["10M"] if quick else list(SHAPES))
    engines = [OURS, *choice(options.peers, known)]
    threads = len(os.sched_getaffinity(0))
    measured = {"models": models, "engines": engines, "threads": threads}
    report = Report("offline", QUESTION, measured | {"peers": versions_of(engines)})
    for model in models:
        size = (QUICK if quick else SIZES)[model]
        size = replace(size, num_rounds=options.rounds or size.num_rounds)
        for engine, samples in compare(model, engines, threads, size, baseline).items():
            add(report, f"{model}: {engine}", samples)
        if size.num_batches:
            add_batching(report, model, batching(model, threads, size))
        if size.num_sharing:
            settings = EngineSettings(str(make_model(model)), threads)
            sharing = compare_sharing(
                settings, SHAPES[model].vocab_size, size.num_sharing, size.num_rounds
            )
            add(report, f"{model}: {OURS}", sharing)
    workload = make_requests(512, 32_000, SEED)
    report.add("unused slots of reserved blocks", "%", [wasted_slots_percent(workload, 64)], aim=4)
    steps = step_times_ms(NUM_RUNNING, 20 if quick else 200)
    report.add(f"scheduler, one step of {NUM_RUNNING} requests", "ms", steps)
    report.print()
    report.write(options.json)


def add(report: Report, who: str, samples: Samples) -> None:
    """Figures whose names end with their unit."""
    for figure, values in samples.items():
        what, _, unit = figure.rpartition(", ")
        report.add(f"{who}: {what}", unit, values)


def add_batching(report: Report, model: str, rates: dict[str, list[float]]) -> None:
    """The rate of each way, and how many times that of static batches continuous batching has."""
    for way, values in rates.items():
        report.add(f"{model}: {way}", "tokens/s", values)
    continuous = rates.pop("continuous")
    for way, values in rates.items():
        ratios = [ours / theirs for ours, theirs in zip(continuous, values, strict=True)]
        report.add(f"{model}: continuous over {way}", "x", ratios)


if __name__ == "__main__":
    main()
