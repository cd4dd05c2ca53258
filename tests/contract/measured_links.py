"""Workers of a mesh that measured their links."""

from __future__ import annotations

from pagemesh.kv_transfer.links import ENOUGH_STREAMS
from pagemesh.v1 import types_pb2
from tests.contract.router_harness import Mesh, eventually


def load_of(mesh: Mesh, worker_id: str) -> types_pb2.WorkerLoad:
    """What the router knows of a worker's load."""
    (load,) = [w.load for w in mesh.router._directory.workers() if w.worker_id == worker_id]
    return load


async def know_link(
    mesh: Mesh, receiver: str, sender: str, bytes_per_second: float, latency: float = 0.001
) -> None:
    """Have a worker measure a link, and wait until the router has heard of it."""
    seconds = 1_000_000 / bytes_per_second
    for _ in range(ENOUGH_STREAMS):
        mesh.workers[receiver].links.learn(sender, latency, 1_000_000, seconds)
    await eventually(lambda: any(x.worker_id == sender for x in load_of(mesh, receiver).links))
