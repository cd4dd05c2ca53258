"""One policy on real workers and on modelled ones."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import psutil
from members import members, metric
from routes.processes import Processes
from simcheck.calibrate import fill
from simcheck.modelled import SETTLE_S, VOCAB_SIZE, WORKER_IDS, Alone, model_of
from simcheck.names import real_names
from simcheck.replay import Replayed, Texts, replay
from simcheck.traces import MAX_WAITING_REQUESTS

from pagemesh.config import RoutingConfig, RoutingPolicy
from pagemesh.sim.model import MeshModel
from pagemesh.sim.records import Outcome
from pagemesh.sim.simulation import MeshSize, Run, Simulation
from pagemesh.sim.trace import Namer, Trace


class Measured(NamedTuple):
    """One replay on the real workers."""

    answers: list[Replayed]
    num_requests: list[int]
    """On each worker."""
    num_other_cores: float
    """In use by router, kvstore and client, in the mean."""


class Sides(NamedTuple):
    """One policy, measured twice and simulated."""

    policy: str
    real: Measured
    again: Measured
    model: MeshModel
    simulated: Run
    timed: Run
    """Likewise, with each request at the time at which it came in the first real run."""


async def measure(mesh: Processes, policy: RoutingPolicy, trace: Trace, alone: Alone) -> Sides:
    """Replay twice, take the rates, simulate."""
    worker = members(mesh.address("kvstore"))["decode-0"]
    # The same tokens in both, so that only chance differs.
    texts = Texts(f"{policy} {time.time()}", VOCAB_SIZE)
    real = await _replay(mesh, policy, trace, texts)
    num_tokens = worker.block_count * worker.kv_layout.block_size
    for name in WORKER_IDS:
        await fill(mesh.address(name), num_tokens, VOCAB_SIZE)
    again = await _replay(mesh, policy, trace, texts)
    num_other_cores = (real.num_other_cores + again.num_other_cores) / 2
    model = await model_of(mesh, policy, worker, alone, num_other_cores)
    simulated = _simulate(trace, model, policy, real_names(trace, real.answers, worker))
    sent = [one for one in real.answers if one.outcome is not Outcome.ABANDONED]
    timed = [
        replace(request, arrival=one.sent, after=None)
        for request, one in zip(trace, real.answers, strict=True)
        if one.outcome is not Outcome.ABANDONED
    ]
    at_times = _simulate(timed, model, policy, real_names(timed, sent, worker))
    return Sides(policy, real, again, model, simulated, at_times)


async def _replay(mesh: Processes, policy: str, trace: Trace, texts: Texts) -> Measured:
    before = _finished(mesh)
    others = [psutil.Process(pid) for pid in (os.getpid(), mesh.pid(policy), mesh.pid("kvstore"))]
    started, used = time.perf_counter(), _cpu_seconds(others)
    answers = await replay(mesh.address(policy), trace, texts)
    num_other_cores = (_cpu_seconds(others) - used) / (time.perf_counter() - started)
    await asyncio.sleep(SETTLE_S)
    counts = [after - b for after, b in zip(_finished(mesh), before, strict=True)]
    return Measured(answers, counts, num_other_cores)


def _cpu_seconds(processes: Sequence[psutil.Process]) -> float:
    times = [process.cpu_times() for process in processes]
    return sum(each.user + each.system for each in times)


def _simulate(trace: Trace, model: MeshModel, policy: RoutingPolicy, namer: Namer) -> Run:
    size = MeshSize(num_decode=len(WORKER_IDS), max_waiting_requests=MAX_WAITING_REQUESTS)
    routing = RoutingConfig(policy)
    return Simulation(trace, model, size, routing, namer=namer).run()


def _finished(mesh: Processes) -> list[int]:
    return [
        round(metric(mesh.metrics_address(name), "vllm:request_success_total"))
        for name in WORKER_IDS
    ]
