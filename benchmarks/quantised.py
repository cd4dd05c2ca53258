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
from statistics import median
from typing import Final, NamedTuple

import random_models
import torch
from engine_process import SETTLE_S, EngineProcess, EngineSettings
from gguf_models import gguf_file, num_matrix_bytes
from peers import OURS, PEERS, start, versions_of
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

    @property
    def bits(self) -> int:
        """Of a weight."""
        way = self.quantization or self.gguf_type or ""
        return next((bits for bits in (4, 8) if str(bits) in way), 16)


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
AIMED: Final = ("int8", "int4", "q8_0", "q4_0")
"""Ways that have aims."""
SHARE_AIM: Final = 0.8
"""Of a stream's reads, in share of what memory can be read at."""
READY_AIMS: Final = {"160M": 2.0}
"""Seconds, by model."""
MEMORY_AIM: Final = 1.25
"""Times the weights, before there is KV."""
TOGETHER_AIMS: Final = {8: 1.0, 4: 0.9}
"""Times the tokens of bfloat16, by bits."""
PEER_AIMS: Final = {"one stream, ms/token": 1.0, "64 at once, tokens/s": 1.2}
"""Times as fast as the best peer whose weights have as many bits."""

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


def bytes_of_all(folder: Path, contestant: Contestant) -> int:
    """Of the weights as they are kept, the table of tokens with them: a file's, if they come out of one."""
    if contestant.gguf_type is not None:
        return gguf_file(folder, contestant.gguf_type).stat().st_size
    config = ConfigJson.read(folder / "config.json")
    table = 2 * config.integer("vocab_size") * config.integer("hidden_size")
    return table + bytes_of_token(folder, contestant)


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

    def __init__(
        self, engine: EngineProcess, vocab_size: int, folder: Path, contestant: Contestant
    ) -> None:
        self._engine = engine
        self._vocab_size = vocab_size
        self._token_bytes = bytes_of_token(folder, contestant)
        self._seeds = count(1)
        self.samples: Samples = defaultdict(list)
        self.samples["ready, s"] = [engine.ready_s]
        self.samples["memory when ready, MB"] = [engine.memory_mb()]
        self.samples["all weights, MB"] = [bytes_of_all(folder, contestant) / 2**20]
        self.samples["weights of a token, MB"] = [self._token_bytes / 2**20]

    def warm_up(self) -> None:
        """What happens only once in a process is no part of a round."""
        self._engine.generate([self._fresh(STREAM[0], 4)])
        self._engine.generate([self._fresh(TOGETHER[1], 2) for _ in range(TOGETHER[0])])

    def round(self) -> None:
        """Every figure once."""
        time.sleep(SETTLE_S)
        # Beside the stream: within a round a shared machine's memory becomes faster or slower.
        rates = read_rate(NUM_READS)
        # Of a virtual machine that had nothing to do, the first to read the weights again may wait for the host's pages.
        self._engine.generate([self._fresh(*STREAM)])
        seconds = self._seconds_per_step(1, *STREAM)
        self.samples["one stream, ms/token"].append(seconds * 1e3)
        rate = median(rates + read_rate(NUM_READS))
        self.samples["memory read beside it, GB/s"].append(rate)
        self.samples["one stream, share of reads"].append(self._token_bytes / seconds / 1e9 / rate)
        number = TOGETHER[0]
        seconds = self._seconds_per_step(*TOGETHER)
        self.samples[f"{number} at once, tokens/s"].append(number / seconds)

    def end(self) -> None:
        """What can be said once all rounds are over."""
        self.samples["memory with KV, MB"] = [self._engine.memory_mb()]

    def _seconds_per_step(self, number: int, num_prompt: int, num_tokens: int) -> float:
        """Of so many requests, behind their first tokens."""

        def seconds(num_tokens: int) -> float:
            requests = [self._fresh(num_prompt, num_tokens) for _ in range(number)]
            return self._engine.generate(requests).seconds

        first = seconds(1)
        whole = seconds(num_tokens)
        # What disturbs one of the two short calls would make all other steps look faster.
        return (whole - min(first, seconds(1))) / (num_tokens - 1)

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
    folder = random_models.make_model(model)
    with ExitStack() as stack:
        measurements = {}
        for way, contestant in contestants.items():
            settings = settings_of(folder, contestant)
            engine = stack.enter_context(start(contestant.engine, settings))
            vocab_size = random_models.SHAPES[model].vocab_size
            measurements[way] = Measurement(engine, vocab_size, folder, contestant)
        for measurement in measurements.values():
            measurement.warm_up()
        for _ in range(num_rounds):
            for measurement in measurements.values():
                measurement.round()
        for measurement in measurements.values():
            measurement.end()
    return {way: measurement.samples for way, measurement in measurements.items()}


def add(report: Report, model: str, found: Mapping[str, Samples]) -> None:
    """All figures."""
    for way, samples in found.items():
        aims = aims_of(model, way, samples)
        for figure, values in samples.items():
            what, _, unit = figure.rpartition(", ")
            reads = SHARE_AIM if unit == "share of reads" and way in AIMED else None
            aim = aims.get(figure)
            report.add(f"{model} {way}: {what}", unit, values, aim=aim, at_least=reads)


def aims_of(model: str, way: str, samples: Samples) -> Mapping[str, float]:
    """What figures of a way should be below."""
    if way not in AIMED:
        return {}
    aims = {"memory when ready, MB": MEMORY_AIM * samples["all weights, MB"][0]}
    return aims | ({"ready, s": READY_AIMS[model]} if model in READY_AIMS else {})


def add_ratios(
    report: Report, model: str, contestants: Mapping[str, Contestant], found: Mapping[str, Samples]
) -> None:
    """How many times as fast as dense weights, and as the best peer with as many bits, each way is."""
    for way, samples in found.items():
        bits, is_aimed = contestants[way].bits, way in AIMED
        peers = [
            found[other]
            for other, each in contestants.items()
            if each.engine != OURS and each.bits == bits
        ]
        for figure, peer_aim in PEER_AIMS.items():
            name = f"{model} {way}: {figure.partition(',')[0]}, over"
            if "bfloat16" in found:
                of_dense = is_aimed and figure.endswith("tokens/s")
                ratios = times_as_fast(figure, samples, found["bfloat16"])
                aim = TOGETHER_AIMS[bits] if of_dense else None
                report.add(f"{name} bfloat16", "x", ratios, at_least=aim)
            if is_aimed and peers:
                of_peers = (times_as_fast(figure, samples, peer) for peer in peers)
                worst = list(map(min, zip(*of_peers, strict=True)))
                report.add(f"{name} the best peer", "x", worst, at_least=peer_aim)


def times_as_fast(figure: str, one: Samples, other: Samples) -> list[float]:
    """By rounds."""
    pairs = zip(one[figure], other[figure], strict=True)
    return [b / a if figure.endswith("ms/token") else a / b for a, b in pairs]


def main() -> None:
    """Measure what was asked for, print it and write it down."""
    parser = make_parser("quantised", QUESTION)
    parser.add_argument(
        "--models",
        default="",
        help=f"some of {','.join(random_models.SHAPES)} (default: {','.join(MODELS)})",
    )
    parser.add_argument("--ways", default="", help=f"some of {','.join(WAYS)} (default: all)")
    parser.add_argument(
        "--peers", default="", help=f"some of {','.join(QUANTISERS)} (default: none)"
    )
    parser.add_argument("--rounds", type=int, help="how often each way is measured")
    options = parser.parse_args()
    models = choice(options.models, random_models.SHAPES) or (
        ["160M"] if options.quick else list(MODELS)
    )
    contestants = {way: WAYS[way] for way in choice(options.ways, WAYS) or WAYS}
    peers = choice(options.peers, QUANTISERS)
    for peer in peers:
        contestants |= contestants_of(peer)
    num_rounds = options.rounds or (2 if options.quick else 5)
    settings = {"models": models, "ways": list(contestants)}
    report = Report("quantised", QUESTION, settings | {"peers": versions_of(peers)})
    report.add("memory read by all threads", "GB/s", read_rate(num_rounds))
    for model in models:
        found = compare(model, contestants, num_rounds)
        add(report, model, found)
        add_ratios(report, model, contestants, found)
    report.print()
    report.write(options.json)


if __name__ == "__main__":
    main()
