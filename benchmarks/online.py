"""How fast are streamed answers while requests keep coming, at different loads, beside other servers?

Requests come at random times (a Poisson process). Rates are shares of what our mesh manages when all
come at once, and the same for everybody: a peer with less capacity may be overloaded by them. Servers take
turns at each load, with requests of the same lengths at the same times; those that wait for their turn
compute nothing.
"""

from __future__ import annotations

import os
import random
import time
from collections.abc import Sequence
from contextlib import ExitStack
from itertools import accumulate, count
from typing import NamedTuple

from clients import Client
from engine_process import SETTLE_S, Arrival, EngineSettings
from peers import PEERS
from random_models import SHAPES, make_model
from report import Report, choice, make_parser
from servers import start_servers
from workload import Request, make_prompt, make_requests

QUESTION = "Latency of streamed answers while requests keep coming, by load"
SEED = 11
NUM_REQUESTS = {"10M": 128, "160M": 64, "1B": 16}
LOADS = (0.5, 0.8)
"""Requests per second, as shares of what our mesh manages when all come at once."""


class Load(NamedTuple):
    """Requests that come at given times; their prompts are made anew for each server."""

    name: str
    lengths: Sequence[Request]
    due: Sequence[float]
    """Seconds from the start."""


def make_load(num_requests: int, vocab_size: int, share: float | None, capacity: float) -> Load:
    """Requests at random times, at a share of so many a second on average; all at once without one."""
    draws = random.Random(SEED)
    lengths = make_requests(num_requests, vocab_size, SEED)
    if share is None:
        return Load("all at once", lengths, [0.0] * num_requests)
    gaps = (draws.expovariate(share * capacity) for _ in range(num_requests))
    return Load(f"{share:.0%} of our capacity", lengths, list(accumulate(gaps)))


class Measurement:
    """The servers of one model."""

    def __init__(self, model: str, clients: dict[str, Client], report: Report) -> None:
        self._model = model
        self._clients = clients
        self._report = report
        self._seeds = count(SEED + 1)

    def warm_up(self, load: Load) -> None:
        """What happens only once in a process is no part of a measured load."""
        for client in self._clients.values():
            client.stream(self._fresh(load.lengths), load.due)

    def run(self, load: Load) -> float:
        """A load at each server in turn; gives the requests per second that the first one answered."""
        rates = []
        for name, client in self._clients.items():
            time.sleep(SETTLE_S)
            arrivals = client.stream(self._fresh(load.lengths), load.due)
            seconds = max(arrival.last for arrival in arrivals)
            rates.append(len(arrivals) / seconds)
            figure = f"{self._model}, {load.name}: {name}"
            if not any(load.due):
                num_tokens = sum(request.num_tokens for request in load.lengths)
                self._report.add(f"{figure}: throughput", "tokens/s", [num_tokens / seconds])
            self._add_latencies(figure, load, arrivals)
        return rates[0]

    def _add_latencies(self, figure: str, load: Load, arrivals: Sequence[Arrival]) -> None:
        first, token, whole = [], [], []
        for request, due, arrival in zip(load.lengths, load.due, arrivals, strict=True):
            first.append((arrival.first - due) * 1e3)
            token.append((arrival.last - arrival.first) * 1e3 / (request.num_tokens - 1))
            whole.append((arrival.last - due) * 1e3)
        self._report.add(f"{figure}: TTFT", "ms", first)
        self._report.add(f"{figure}: per token after the first", "ms", token)
        self._report.add(f"{figure}: E2E", "ms", whole)

    def _fresh(self, lengths: Sequence[Request]) -> list[Request]:
        """Prompts of an earlier run may be in a prefix cache."""
        vocab_size = SHAPES[self._model].vocab_size
        return [
            one._replace(prompt=make_prompt(len(one.prompt), vocab_size, next(self._seeds)))
            for one in lengths
        ]


def measure(model: str, peers: Sequence[str], threads: int, quick: bool, report: Report) -> None:
    """All loads with one model."""
    num_requests = NUM_REQUESTS[model] // (4 if quick else 1)
    vocab_size = SHAPES[model].vocab_size
    with ExitStack() as stack:
        clients = start_servers(stack, EngineSettings(str(make_model(model)), threads), peers)
        measurement = Measurement(model, clients, report)
        measurement.warm_up(make_load(2, vocab_size, None, 0.0))
        capacity = measurement.run(make_load(num_requests, vocab_size, None, 0.0))
        report.add(f"{model}: our capacity", "requests/s", [capacity])
        for share in LOADS:
            measurement.run(make_load(num_requests, vocab_size, share, capacity))


def main() -> None:
    """Measure the models that were asked for, print it and write it down."""
    known = [name for name, peer in PEERS.items() if peer.online]
    parser = make_parser("online", QUESTION)
    parser.add_argument("--models", default="", help=f"some of {','.join(SHAPES)} (default: all)")
    parser.add_argument("--peers", default="", help=f"some of {','.join(known)} (default: none)")
    options = parser.parse_args()
    models = choice(options.models, SHAPES) or (["10M"] if options.quick else list(SHAPES))
    peers = choice(options.peers, known)
    threads = len(os.sched_getaffinity(0))
    settings: dict[str, object] = {"models": models, "peers": peers, "threads": threads}
    report = Report("online", QUESTION, settings | {"decode": 1, "prefill": 0})
    for model in models:
        measure(model, peers, threads, options.quick, report)
    report.print()
    report.write(options.json)


if __name__ == "__main__":
    main()
