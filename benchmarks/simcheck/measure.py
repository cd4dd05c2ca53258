"""One policy on real workers and on modelled ones."""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace
from typing import Final, NamedTuple

from members import members, metric
from routes.processes import Processes
from simcheck.calibrate import decode_model, fill, overheads, prefill_models, usual_seconds
from simcheck.names import real_names
from simcheck.replay import Replayed, Texts, replay
from simcheck.times import modelled_tpot, tpot_of

from pagemesh.config import RoutingConfig, RoutingPolicy
from pagemesh.sim.model import DecodeModel, MeshModel, WorkerModel
from pagemesh.sim.simulation import MeshSize, Run, Simulation
from pagemesh.sim.trace import Namer, Trace
from pagemesh.v1 import types_pb2

NUM_WORKERS: Final = 8
WORKER_IDS: Final = tuple(f"decode-{number}" for number in range(NUM_WORKERS))
VOCAB_SIZE: Final = 2048
SETTLE_S: Final = 1.0


class Measured(NamedTuple):
    """One replay on the real workers."""

    answers: list[Replayed]
    num_requests: list[int]
    """On each worker."""


class Sides(NamedTuple):
    """One policy, measured twice and simulated."""

    policy: str
    real: Measured
    again: Measured
    model: MeshModel
    simulated: Run
    timed: Run
    """Likewise, with each request at the time at which it came in the first real run."""


async def measure(mesh: Processes, policy: RoutingPolicy, trace: Trace) -> Sides:
    """Replay twice, take the rates, simulate."""
    worker = members(mesh.address("kvstore"))["decode-0"]
    # The same tokens in both, so that only chance differs.
    texts = Texts(f"{policy} {time.time()}", VOCAB_SIZE)
    real = await _replay(mesh, policy, trace, texts)
    num_tokens = worker.block_count * worker.kv_layout.block_size
    for name in WORKER_IDS:
        await fill(mesh.address(name), num_tokens, VOCAB_SIZE)
    again = await _replay(mesh, policy, trace, texts)
    model = await _model(mesh, policy, worker)
    namer = real_names(trace, real.answers, worker)
    # A step takes longer when other workers are on the same cores: decodes take as long as they did in the run.
    alone = _simulate(trace, model, policy, namer)
    tpot = (tpot_of(real.answers) + tpot_of(again.answers)) / 2
    stretch = max(1.0, tpot / modelled_tpot(alone.records))
    model = replace(model, decode=replace(model.decode, decode=_stretched(model, stretch)))
    simulated = _simulate(trace, model, policy, namer)
    timed = [
        replace(request, arrival=one.sent, after=None)
        for request, one in zip(trace, real.answers, strict=True)
    ]
    at_times = _simulate(timed, model, policy, real_names(timed, real.answers, worker))
    return Sides(policy, real, again, model, simulated, at_times)


async def _replay(mesh: Processes, policy: str, trace: Trace, texts: Texts) -> Measured:
    before = _finished(mesh)
    answers = await replay(mesh.address(policy), trace, texts)
    await asyncio.sleep(SETTLE_S)
    counts = [after - b for after, b in zip(_finished(mesh), before, strict=True)]
    return Measured(answers, counts)


def _simulate(trace: Trace, model: MeshModel, policy: RoutingPolicy, namer: Namer) -> Run:
    size, routing = MeshSize(num_decode=NUM_WORKERS), RoutingConfig(policy)
    return Simulation(trace, model, size, routing, namer=namer).run()


def _stretched(model: MeshModel, factor: float) -> DecodeModel:
    decode = model.decode.decode
    return DecodeModel(
        factor * decode.seconds_per_sequence,
        factor * decode.seconds_per_pair,
        factor * decode.seconds_per_step,
    )


def _finished(mesh: Processes) -> list[int]:
    return [
        round(metric(mesh.metrics_address(name), "vllm:request_success_total"))
        for name in WORKER_IDS
    ]


async def _model(mesh: Processes, policy: str, worker: types_pb2.WorkerInfo) -> MeshModel:
    """The mesh as it was in the run that has just ended."""
    measured = prefill_models({name: mesh.metrics_address(name) for name in WORKER_IDS})
    # What prompts cost is what the worker in the middle says; each tells routers its own.
    prefill = sorted(measured.values(), key=usual_seconds)[NUM_WORKERS // 2]
    address = mesh.address("decode-0")
    decode = await decode_model(address, VOCAB_SIZE)
    extra = await overheads(address, mesh.address(policy), VOCAB_SIZE, prefill)
    layout = worker.kv_layout
    per_token = 2 * layout.layer_count * layout.kv_head_count * layout.head_dim * 4
    return MeshModel(
        measured=measured,
        block_size=layout.block_size,
        num_layers=layout.layer_count,
        kv_bytes_per_token=per_token,
        router_seconds=extra.router,
        network_seconds=extra.network,
        decode=WorkerModel(
            kv_tokens=worker.block_count * layout.block_size,
            max_num_seqs=worker.max_num_seqs,
            max_num_batched_tokens=512,
            max_model_len=worker.max_model_len,
            prefill=prefill,
            decode=decode,
        ),
    )
