"""The workers of a mesh as its kvstore knows them, and what their metrics say."""

from __future__ import annotations

import time
from collections.abc import Iterable
from urllib.request import urlopen

import grpc
from mesh import START_DEADLINE_S, Mesh, Part
from prometheus_client.parser import text_string_to_metric_families

from pagemesh.v1 import decode_pb2, kvstore_pb2, kvstore_pb2_grpc, types_pb2

_DEADLINE_S = 10.0


def members(kvstore: str) -> dict[str, types_pb2.WorkerInfo]:
    """The workers by id, asked of the kvstore at host:port."""
    with grpc.insecure_channel(kvstore) as channel:
        stub = kvstore_pb2_grpc.KvStoreStub(channel)
        state = stub.Snapshot(kvstore_pb2.SnapshotRequest(), timeout=_DEADLINE_S)
    return {entry.worker.worker_id: entry.worker for entry in state.workers}


def all_members(mesh: Mesh) -> dict[str, types_pb2.WorkerInfo]:
    """The workers of a mesh of `pagemesh up`, when the last one is known; RuntimeError if one never is.

    A mesh is ready as soon as it can answer, which takes one decode worker.
    """
    parts = mesh.parts()
    expected = {
        name for name, part in parts.items() if "--kvstore" in part.flags and name != "router"
    }
    kvstore = parts["decode-0"].flags["--kvstore"]
    deadline = time.monotonic() + START_DEADLINE_S
    while time.monotonic() < deadline:
        known = members(kvstore)
        if expected <= known.keys():
            return known
        time.sleep(0.02)
    raise RuntimeError(f"of the workers {sorted(expected)} only {sorted(known)} are known")


def peer(worker: types_pb2.WorkerInfo) -> types_pb2.PeerWorker:
    """How other workers find it."""
    return types_pb2.PeerWorker(
        worker_id=worker.worker_id, address=worker.address, epoch=worker.epoch
    )


def plan_of(workers: Iterable[types_pb2.WorkerInfo]) -> decode_pb2.PrefillPlan:
    """The plan that names prefill workers in this order."""
    return decode_pb2.PrefillPlan(workers=[peer(worker) for worker in workers])


def metric(address: str, name: str, **labels: str) -> float:
    """The sum of a metric's samples with these labels, read at host:port; 0 without any."""
    with urlopen(f"http://{address}/metrics", timeout=_DEADLINE_S) as page:
        text = page.read().decode()
    return sum(
        sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if sample.name == name and labels.items() <= sample.labels.items()
    )


def metrics_address(part: Part) -> str:
    """host:port of the metrics of a part of `pagemesh up`."""
    return f"127.0.0.1:{part.flags['--metrics-port']}"
