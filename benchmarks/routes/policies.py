"""What does each policy bring, on four real workers whose caches are too small for all prefixes alone?

60 prefixes of 1,024 tokens fill 70 % of the four caches together, and 2.8 of one. A router for each policy
beside the same workers; one is used at a time. Clients ask the routers by gRPC: a gateway would add the same
to all. A model with random weights, of which prompts cost most: a thread for each worker, on the machine's
cores. In each round all policies get the same prefixes' order, lengths and times, with tokens that no cache has seen;
each prefix comes once before anything counts.

Loads: 32 clients of which each sends a request when its last one is answered (saturated), and requests at
random times (a Poisson process), at shares of what kv_aware answers when saturated.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from itertools import count
from typing import Final, get_args, get_type_hints

import grpc.aio
from members import members
from random_models import make_model
from report import Report
from routes.answers import Answer, Client
from routes.oracle import endless_hits, greedy_hits
from routes.prefixes import NUM_PREFIXES, PREFIX_TOKENS, Workload
from routes.processes import Processes
from turns import turns

from pagemesh.config import RoutingConfig

MODEL: Final = "160M"
NUM_WORKERS: Final = 4
KV_CACHE_GIB: Final = 0.25
BLOCK_SIZE: Final = 16
BASE: Final = "kv_aware"
POLICIES: Final = get_args(get_type_hints(RoutingConfig)["policy"])
SATURATED: Final = "saturated"
SHARES: Final = {"light load": 0.3, "near saturation": 0.9}
"""Of the rate that `BASE` reaches when saturated."""
NUM_CLIENTS: Final = 32
NUM_SATURATED: Final = 128
WINDOW_S: Final = 14.0
"""In which requests come, where they come at random times."""
WARM_UP_CLIENTS: Final = 8
SETTLE_S: Final = 1.0
TTFT_LIMIT_S, TPOT_LIMIT_S = 1.0, 0.1
"""A request within both is good."""
SEED: Final = 6
NEAR_ORACLE: Final = 0.95
GAIN: Final = 2.0


class Pieces:
    """Everything to be measured, one (round, load, policy) after the other, and what came of it."""

    def __init__(self, report: Report, *, quick: bool, num_rounds: int) -> None:
        self._report = report
        self._num_rounds = num_rounds
        self._scale = 0.25 if quick else 1.0
        report.settings |= {
            "model": MODEL,
            "workers": NUM_WORKERS,
            "threads_per_worker": 1,
            "kv_cache_gib_per_worker": KV_CACHE_GIB,
            "prefixes": NUM_PREFIXES,
            "prefix_tokens": PREFIX_TOKENS,
            "rounds": self._num_rounds,
            "ttft_limit_s": TTFT_LIMIT_S,
            "tpot_limit_s": TPOT_LIMIT_S,
        }

    def left(self) -> Iterator[tuple[int, str, str]]:
        """What was not measured yet."""
        for number in range(self._num_rounds):
            for load in (SATURATED, *SHARES):
                # The first one's rate is what the other loads are shares of.
                policies = [BASE, *(policy for policy in POLICIES if policy != BASE)]
                for policy in turns(policies, number):
                    if len(self._samples(load, policy, "requests")) <= number:
                        yield number, load, policy

    async def run(
        self, piece: tuple[int, str, str], channel: grpc.aio.Channel, world: int, num_blocks: int
    ) -> None:
        """Measure one; `world` was not used before."""
        number, load, policy = piece
        workload, client = Workload(SEED + number), Client(channel)
        warm_up = workload.warm_up(world)
        await client.in_turn(warm_up, WARM_UP_CLIENTS)
        await asyncio.sleep(SETTLE_S)
        if load == SATURATED:
            requests = workload.stream(world, round(self._scale * NUM_SATURATED))
            answers = await client.in_turn(requests, NUM_CLIENTS)
        else:
            rate = SHARES[load] * self._samples(SATURATED, BASE, "requests")[0]
            requests = workload.stream(world, round(self._scale * WINDOW_S * rate))
            answers = await client.at_times(requests, workload.due(len(requests), rate))
        everything = [*warm_up, *requests]
        oracle = greedy_hits(everything, NUM_WORKERS, num_blocks, BLOCK_SIZE)[len(warm_up) :]
        endless = endless_hits(everything, BLOCK_SIZE)[len(warm_up) :]
        self._add(load, policy, answers, sum(oracle), sum(endless))

    def compare(self) -> None:
        """What the base brings over the others, when everything was measured."""
        for load in (SATURATED, "near saturation"):
            base = self._samples(load, BASE, "requests")
            for policy in POLICIES:
                other = self._samples(load, policy, "requests")
                if policy == BASE:
                    continue
                aim = GAIN if policy in ("round_robin", "random") else None
                gains = [mine / theirs for mine, theirs in zip(base, other, strict=True)]
                name = f"{load}, {BASE} over {policy}: throughput"
                self._report.add(name, "x", gains, at_least=aim)

    def _add(
        self, load: str, policy: str, answers: Sequence[Answer], oracle: int, endless: int
    ) -> None:
        seconds = max(answer.last for answer in answers)
        num_prompt = sum(answer.num_prompt_tokens for answer in answers)
        num_cached = sum(answer.num_cached_tokens for answer in answers)
        num_good = sum(a.ttft <= TTFT_LIMIT_S and a.tpot <= TPOT_LIMIT_S for a in answers)
        firsts = sorted(answer.ttft * 1e3 for answer in answers)
        per_token = sorted(answer.tpot * 1e3 for answer in answers)

        def add(quantity: str, unit: str, value: float, aim: float | None = None) -> None:
            self._report.sample(f"{load}, {policy}: {quantity}", unit, value, at_least=aim)

        add("requests", "1/s", len(answers) / seconds)
        add("tokens", "1/s", sum(a.num_tokens for a in answers) / seconds)
        add("hit rate", "", num_cached / num_prompt)
        aim = NEAR_ORACLE if policy == BASE else None
        add("hits over the oracle's", "", num_cached / oracle, aim)
        add("hits over an endless cache's", "", num_cached / endless)
        for share in (0.5, 0.9, 0.99):
            add(f"TTFT p{share * 100:g}", "ms", _percentile(firsts, share))
        for share in (0.5, 0.9):
            add(f"TPOT p{share * 100:g}", "ms", _percentile(per_token, share))
        add("good requests", "", num_good / len(answers))
        add("goodput", "1/s", num_good / seconds)

    def _samples(self, load: str, policy: str, quantity: str) -> list[float]:
        return self._report.samples(f"{load}, {policy}: {quantity}")


def measure(report: Report, *, quick: bool, until: float, num_rounds: int) -> bool:
    """Go on with what is left until `time.monotonic()` says so; whether nothing is left."""
    pieces = Pieces(report, quick=quick, num_rounds=num_rounds)
    left = list(pieces.left())
    with ExitStack() as stack:
        mesh = stack.enter_context(Processes(make_model(MODEL)))
        start(mesh, POLICIES, KV_CACHE_GIB)
        worker = members(mesh.address("kvstore"))["decode-0"]
        report.settings["blocks_per_worker"] = worker.block_count
        for piece, world in zip(left, count(), strict=False):
            if time.monotonic() >= until:
                return False
            print("round {}, {}, {}".format(*piece), flush=True)
            asyncio.run(_run(mesh, pieces, piece, world, worker.block_count))
    pieces.compare()
    return True


def start(mesh: Processes, policies: Sequence[str], kv_cache_gib: float) -> None:
    """Workers with such caches each, and a router for each policy, by its name; returns when all serve."""
    mesh.start_kvstore()
    workers = [f"decode-{number}" for number in range(NUM_WORKERS)]
    for name in workers:
        mesh.start_worker(name, "--kv-cache-memory", str(kv_cache_gib))
    for policy in policies:
        mesh.start_router(policy, "--policy", policy)
    mesh.await_members(workers)
    for policy in policies:
        mesh.await_serving(policy)


async def _run(
    mesh: Processes, pieces: Pieces, piece: tuple[int, str, str], world: int, num_blocks: int
) -> None:
    async with grpc.aio.insecure_channel(mesh.address(piece[2])) as channel:
        await pieces.run(piece, channel, world, num_blocks)


def _percentile(ordered: Sequence[float], share: float) -> float:
    """The least of sorted samples that this share of them does not exceed."""
    return ordered[math.ceil(share * len(ordered)) - 1]
