"""How fast is the engine without services, beside other engines on the same machine in the same run?"""

from __future__ import annotations

import os
import sys
from collections import defaultdict
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from dataclasses import replace
from itertools import count
from pathlib import Path

from engine_process import EngineProcess, EngineSettings, prepare
from peers import OUR_SCRIPT, PEERS, python_of
from random_models import SHAPES, make_model
from report import Report, make_parser
from scheduler_alone import step_times_ms, wasted_slots_percent
from workload import Request, make_prompt, make_requests

QUESTION = "Throughput and latency of the engine alone, for models with random weights"
OURS = "pagemesh"
SEED = 7
NUM_REQUESTS = {"10M": 128, "160M": 64, "1B": 16}
STATIC_BATCH = 16
STREAM = (128, 64)
"""Prompt and answer of a request that runs alone, in tokens."""
LONG_PROMPT = 1024
NUM_RUNNING = 256

Samples = dict[str, list[float]]
"""By figure."""


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
        for state in ("cold", "cached"):
            seconds = self._engine.generate([prompt]).seconds
            self.samples[f"TTFT {LONG_PROMPT} {state}, ms"].append(seconds * 1e3)

    def end(self) -> None:
        """What can be said once all rounds are over."""
        self.samples["ready, s"] = [self._engine.ready_s]
        self.samples["memory, MB"] = [self._engine.memory_mb()]

    def _fresh(self, num_prompt_tokens: int, num_tokens: int) -> Request:
        prompt = make_prompt(num_prompt_tokens, self._vocab_size, next(self._seeds))
        return Request(prompt, num_tokens)


def compare(model: str, engines: Sequence[str], threads: int, quick: bool) -> dict[str, Samples]:
    """Samples by engine; rounds are interleaved, so that a noisy minute disturbs all alike."""
    settings = EngineSettings(str(make_model(model)), threads)
    requests = make_requests(_num_requests(model, quick), SHAPES[model].vocab_size, SEED)
    with ExitStack() as stack:
        measurements = {
            name: Measurement(stack.enter_context(start(name, settings)), model, requests)
            for name in engines
        }
        for measurement in measurements.values():
            measurement.warm_up()
        for _ in range(1 if quick else 5):
            for measurement in measurements.values():
                measurement.round()
        for measurement in measurements.values():
            measurement.end()
    return {name: measurement.samples for name, measurement in measurements.items()}


def batching(model: str, threads: int, quick: bool) -> list[float]:
    """How many times the throughput of static batches continuous batching has, on the same engine.

    A static batch ends with its longest answer, and only then does the next one begin.
    """
    settings = EngineSettings(str(make_model(model)), threads)
    settings = replace(settings, max_num_seqs=STATIC_BATCH)
    vocab_size = SHAPES[model].vocab_size
    num_requests = max(4 * STATIC_BATCH, _num_requests(model, quick))
    ratios = []
    with start(OURS, settings) as engine:
        for seed in range(1 if quick else 3):
            # Different prompts, so that neither finds the other's in the prefix cache.
            requests = make_requests(num_requests, vocab_size, 2 * seed)
            fresh = make_requests(num_requests, vocab_size, 2 * seed + 1)
            same = [
                one._replace(num_tokens=r.num_tokens)
                for one, r in zip(fresh, requests, strict=True)
            ]
            continuous = engine.generate(requests).seconds
            static = sum(
                engine.generate(same[begin : begin + STATIC_BATCH]).seconds
                for begin in range(0, num_requests, STATIC_BATCH)
            )
            ratios.append(static / continuous)
    return ratios


def start(name: str, settings: EngineSettings) -> EngineProcess:
    """An engine's process, ready to be asked."""
    if name == OURS:
        return EngineProcess(Path(sys.executable), OUR_SCRIPT, settings)
    python, peer = python_of(name), PEERS[name]
    if peer.prepares:
        prepare(python, peer.script, settings.model)
    return EngineProcess(python, peer.script, settings)


def main() -> None:
    """Measure what was asked for, print it and write it down."""
    parser = make_parser("offline", QUESTION)
    parser.add_argument("--models", default="", help=f"some of {','.join(SHAPES)} (default: all)")
    parser.add_argument("--peers", default="", help=f"some of {','.join(PEERS)} (default: none)")
    options = parser.parse_args()
    quick: bool = options.quick
    models = _choice(options.models, SHAPES) or (["10M"] if quick else list(SHAPES))
    engines = [OURS, *_choice(options.peers, PEERS)]
    threads = len(os.sched_getaffinity(0))
    report = Report("offline", QUESTION, {"models": models, "engines": engines, "threads": threads})
    for model in models:
        for engine, samples in compare(model, engines, threads, quick).items():
            for figure, values in samples.items():
                what, _, unit = figure.rpartition(", ")
                report.add(f"{model}: {engine}: {what}", unit, values)
        report.add(
            f"{model}: continuous over static batching", "x", batching(model, threads, quick)
        )
    workload = make_requests(512, 32_000, SEED)
    report.add("unused slots of reserved blocks", "%", [wasted_slots_percent(workload, 64)], aim=4)
    steps = step_times_ms(NUM_RUNNING, 20 if quick else 200)
    report.add(f"scheduler, one step of {NUM_RUNNING} requests", "ms", steps)
    report.print()
    report.write(options.json)


def _num_requests(model: str, quick: bool) -> int:
    return NUM_REQUESTS[model] // (4 if quick else 1)


def _choice(text: str, known: Iterable[str]) -> list[str]:
    names = [name for name in text.split(",") if name]
    for name in names:
        if name not in known:
            sys.exit(f"there is no {name!r}, only {', '.join(known)}")
    return names


if __name__ == "__main__":
    main()
