"""The model of a mesh: of workers that compute one after the other, of all at once, and of a run."""

from __future__ import annotations

import asyncio
from typing import Final, NamedTuple

from routes.processes import Processes
from simcheck.calibrate import (
    LENGTHS,
    compute,
    cores_for_engines,
    decode_model,
    overheads,
    prefill_models,
    usual_seconds,
)

from pagemesh.sim.model import DecodeModel, MeshModel, PrefillModel, WorkerModel
from pagemesh.v1 import types_pb2

NUM_WORKERS: Final = 8
WORKER_IDS: Final = tuple(f"decode-{number}" for number in range(NUM_WORKERS))
VOCAB_SIZE: Final = 2048
SETTLE_S: Final = 1.0


class Alone(NamedTuple):
    """What workers take without others beside them."""

    prefill: PrefillModel
    decode: DecodeModel
    num_cores: float
    """For all of them."""


async def measure_alone(mesh: Processes) -> Alone:
    """On an idle mesh, before it is replayed on."""
    addresses = [mesh.address(name) for name in WORKER_IDS]
    num_cores = await cores_for_engines(addresses, VOCAB_SIZE)
    # Each by itself, until it has forgotten the others.
    for address in addresses:
        await compute(address, 4 * LENGTHS, VOCAB_SIZE)
    await asyncio.sleep(SETTLE_S)
    measured = prefill_models({name: mesh.metrics_address(name) for name in WORKER_IDS})
    prefill = sorted(measured.values(), key=usual_seconds)[NUM_WORKERS // 2]
    return Alone(prefill, await decode_model(addresses[0], VOCAB_SIZE), num_cores)


async def model_of(
    mesh: Processes,
    policy: str,
    worker: types_pb2.WorkerInfo,
    alone: Alone,
    num_other_cores: float,
) -> MeshModel:
    """The mesh as it was in the run that has just ended."""
    # What prompts cost is what a worker takes alone; what it tells routers is what it had in the run.
    measured = prefill_models({name: mesh.metrics_address(name) for name in WORKER_IDS})
    address = mesh.address("decode-0")
    extra = await overheads(address, mesh.address(policy), VOCAB_SIZE, alone.prefill)
    layout = worker.kv_layout
    per_token = 2 * layout.layer_count * layout.kv_head_count * layout.head_dim * 4
    return MeshModel(
        measured=measured,
        cores=max(0.1, alone.num_cores - num_other_cores),
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
            prefill=alone.prefill,
            decode=alone.decode,
        ),
    )
