"""What do weights of 8 and 4 bits bring on a CPU: speed, share of what memory can be read at, time to load, memory?

Models have random weights, which are quantised while they are loaded or stand quantised in a GGUF file; the same engine
without that is measured in the same rounds, and so are peers. A token of one stream reads every weight but the embedding's
table once.
"""

from __future__ import annotations

import os
import time
from collections import defaultdict
from collections.abc import Mapping
from contextlib import ExitStack
from itertools import count
from math import prod
from pathlib import Path
from typing import Final, NamedTuple

import torch
from engine_process import SETTLE_S, EngineProcess, EngineSettings
from gguf_models import gguf_file, num_matrix_bytes
from peers import OURS, PEERS, start, versions_of
from random_models import SHAPES, make_model
from report import Report, choice, make_parser
from workload import Request, make_prompt

from pagemesh.models.config_json import ConfigJson
from pagemesh.models.registry import find_architecture
from pagemesh.sizing.weights import packed_weights

QUESTION: Final = "The engine with quantised weights, beside the dense ones"


class Contestant(NamedTuple):
    """An engine with weights of one kind."""

    engine: str = OURS
    quantization: str | None = None
    """How it quantises the checkpoint."""
    gguf_type: str | None = None
    """Of the file that it takes instead of the checkpoint."""


WAYS: Final[Mapping[str, Contestant]] = {
    "bfloat16": Contestant(),
    "fp8": Contestant(quantization="fp8"),
    "int8": Contestant(quantization="int8"),
    "int4": Contestant(quantization="int4"),
    "q8_0": Contestant(gguf_type="q8_0"),
    "q4_0": Contestant(gguf_type="q4_0"),
}
QUANTISERS: Final = [name for name, peer in PEERS.items() if peer.quantises or peer.gguf_types]
MODELS: Final = ("160M", "1B")
STREAM: Final = (64, 48)
"""Prompt and answer of a request that runs alone, in tokens."""
TOGETHER: Final = (64, 32, 32)
"""Requests that run at once, with prompts and answers of so many tokens."""
READ_BYTES: Final = 1 << 28
NUM_READS: Final = 12
"""The first few may be slow, as those of weights are; see `Measurement.round`."""
AIM: Final = 0.8
"""Of a stream's reads, in share of what memory can be read at; of 8 and of 4 bits."""
AIMED: Final = ("int8", "int4", "q8_0", "q4_0")

Samples = dict[str, list[float]]


def read_rate(num_rounds: int) -> list[float]:
    """GB/s of a sum over more than any second-level cache holds, by all threads."""
    source = torch.ones(READ_BYTES // 4)
    source.sum()
    rates = []
    for _ in range(num_rounds):
        started = time.perf_counter()
        source.sum()
        rates.append(READ_BYTES / (time.perf_counter() - started) / 1e9)
    return rates


def contestants_of(name: str) -> dict[str, Contestant]:
    """Those of a peer."""
    peer = PEERS[name]
    return {f"{name} {way}": Contestant(name, quantization=way) for way in peer.quantises} | {
        f"{name} {kind}": Contestant(name, gguf_type=kind) for kind in peer.gguf_types
    }


def bytes_of_token(folder: Path, contestant: Contestant) -> int:
    """Of all weights that one token is multiplied with; of the ways in which others quantise, as many as of ours."""
    if contestant.gguf_type is not None:
        return num_matrix_bytes(gguf_file(folder, contestant.gguf_type))
    way = contestant.quantization
    settings = ConfigJson.read(folder / "config.json")
    architecture = find_architecture(settings)
    assert architecture is not None
    spec = architecture.make_spec(settings)
    packed = packed_weights(folder, settings, architecture, spec, way, "cpu").num_bytes
    shapes = spec.parameter_shapes()
    return sum(
        packed.get(name, 2 * prod(shape)) for name, shape in shapes.items() if name != "embed"
    )


class Measurement:
    """The rounds of one way."""

    def __init__(self, engine: EngineProcess, vocab_size: int, token_bytes: int) -> None:
        self._engine = engine
        self._vocab_size = vocab_size
        self._token_bytes = token_bytes
        self._seeds = count(1)
        self.samples: Samples = defaultdict(list)

    def warm_up(self) -> None:
        """What happens only once in a process is no part of a round."""
        self._engine.generate([self._fresh(STREAM[0], 4)])
        self._engine.generate([self._fresh(TOGETHER[1], 2) for _ in range(TOGETHER[0])])

    def round(self, rate: float) -> None:
        """Every figure once; memory was read at so many GB/s."""
        time.sleep(SETTLE_S)
        # Of a virtual machine that had nothing to do, the first to read the weights again may wait for the host's pages.
        self._engine.generate([self._fresh(*STREAM)])
        first = self._engine.generate([self._fresh(STREAM[0], 1)]).seconds
        whole = self._engine.generate([self._fresh(*STREAM)]).seconds
        seconds = (whole - first) / (STREAM[1] - 1)
        self.samples["one stream, ms/token"].append(seconds * 1e3)
        self.samples["one stream, share of reads"].append(self._token_bytes / seconds / 1e9 / rate)
        number, num_prompt, num_tokens = TOGETHER
        first = self._engine.generate([self._fresh(num_prompt, 1) for _ in range(number)]).seconds
        whole = self._engine.generate(
            [self._fresh(num_prompt, num_tokens) for _ in range(number)]
        ).seconds
        rate_together = number * (num_tokens - 1) / (whole - first)
        self.samples[f"{number} at once, tokens/s"].append(rate_together)

    def end(self) -> None:
        """What can be said once all rounds are over."""
        self.samples["ready, s"] = [self._engine.ready_s]
        self.samples["memory, MB"] = [self._engine.memory_mb()]
        self.samples["weights of a token, MB"] = [self._token_bytes / 2**20]

    def _fresh(self, num_prompt_tokens: int, num_tokens: int) -> Request:
        prompt = make_prompt(num_prompt_tokens, self._vocab_size, next(self._seeds))
        return Request(prompt, num_tokens)


def settings_of(folder: Path, contestant: Contestant) -> EngineSettings:
    """What its process is started with."""
    model = folder
    if contestant.gguf_type is not None:
        model = gguf_file(folder, contestant.gguf_type)
    threads = len(os.sched_getaffinity(0))
    return EngineSettings(str(model), threads, quantization=contestant.quantization)


def compare(
    model: str, contestants: Mapping[str, Contestant], num_rounds: int
) -> dict[str, Samples]:
    """Samples by way; rounds are interleaved, so that a noisy minute disturbs all alike."""
    folder = make_model(model)
    with ExitStack() as stack:
        measurements = {}
        for way, contestant in contestants.items():
            settings = settings_of(folder, contestant)
            engine = stack.enter_context(start(contestant.engine, settings))
            measurements[way] = Measurement(
                engine, SHAPES[model].vocab_size, bytes_of_token(folder, contestant)
            )
        for measurement in measurements.values():
            measurement.warm_up()
        for _ in range(num_rounds):
            time.sleep(SETTLE_S)
            rate = max(read_rate(NUM_READS))
            for measurement in measurements.values():
                measurement.round(rate)
        for measurement in measurements.values():
            measurement.end()
    return {way: measurement.samples for way, measurement in measurements.items()}


def add(report: Report, model: str, found: Mapping[str, Samples]) -> None:
    """All figures, and how many times the dense weights' each is."""
    for way, samples in found.items():
        for figure, values in samples.items():
            what, _, unit = figure.rpartition(", ")
            is_aimed = unit == "share of reads" and way in AIMED
            report.add(f"{model} {way}: {what}", unit, values, at_least=AIM if is_aimed else None)
    dense = found.get("bfloat16")
    if dense is None:
        return
    for way, samples in found.items():
        for figure in ("one stream, ms/token", f"{TOGETHER[0]} at once, tokens/s"):
            pairs = list(zip(samples[figure], dense[figure], strict=True))
            is_time = figure.endswith("ms/token")
            ratios = [b / a if is_time else a / b for a, b in pairs]
            report.add(f"{model} {way}: {figure.partition(',')[0]}, over bfloat16", "x", ratios)


def main() -> None:
    """Measure what was asked for, print it and write it down."""
    parser = make_parser("quantised", QUESTION)
    parser.add_argument(
        "--models", default="", help=f"some of {','.join(SHAPES)} (default: {','.join(MODELS)})"
    )
    parser.add_argument("--ways", default="", help=f"some of {','.join(WAYS)} (default: all)")
    parser.add_argument(
        "--peers", default="", help=f"some of {','.join(QUANTISERS)} (default: none)"
    )
    parser.add_argument("--rounds", type=int, help="how often each way is measured")
    options = parser.parse_args()
    models = choice(options.models, SHAPES) or (["160M"] if options.quick else list(MODELS))
    contestants = {way: WAYS[way] for way in choice(options.ways, WAYS) or WAYS}
    peers = choice(options.peers, QUANTISERS)
    for peer in peers:
        contestants |= contestants_of(peer)
    num_rounds = options.rounds or (2 if options.quick else 5)
    settings = {"models": models, "ways": list(contestants)}
    report = Report("quantised", QUESTION, settings | {"peers": versions_of(peers)})
    report.add("memory read by all threads", "GB/s", read_rate(num_rounds))
    for model in models:
        add(report, model, compare(model, contestants, num_rounds))
    report.print()
    report.write(options.json)


if __name__ == "__main__":
    main()
