"""How soon the index is whole again when the kvstore or a worker was killed and started anew, and how lookups
fare meanwhile.
"""

from __future__ import annotations

import time
from contextlib import ExitStack

import grpc
from blockindex.lookups import Lookups
from blockindex.processes import KvStoreProcess, running_kvstore, until_known
from blockindex.publishing import publish
from blockindex.valkey import running_valkey
from child import Child
from report import Report

from pagemesh.rpc.channels import channel_options
from pagemesh.v1 import kvstore_pb2, kvstore_pb2_grpc

NUM_BLOCKS = 1_000_000
"""Of all workers together: 16 million tokens."""
AIM_S = 2.0
SETTLE_S = 6.0
"""Before the kvstore is killed: connections that lasted are tried again at once."""
LOOKUP_LIMIT_S = 0.02
"""What routers wait by default."""


def measure(report: Report, kind: str, num_workers: int, *, quick: bool) -> None:
    """Kill and start each, a few times; `kind` is memory or redis. All workers are one process."""
    rounds = 1 if quick else 3
    report.settings |= {"index": kind, "rounds": rounds}
    for share in (10,) if quick else (10, 3, 1):
        num_blocks = NUM_BLOCKS // share // num_workers
        size = f"{num_workers} workers of {num_blocks:,} blocks"
        with ExitStack() as resources:
            url = "memory" if kind == "memory" else resources.enter_context(running_valkey())
            kvstore = resources.enter_context(running_kvstore(url))
            _measure(report, size, kvstore, num_workers, num_blocks, rounds)


def _measure(
    report: Report,
    size: str,
    kvstore: KvStoreProcess,
    num_workers: int,
    num_blocks: int,
    rounds: int,
) -> None:
    known = {f"worker-{number}": num_blocks for number in range(num_workers)}
    with (
        grpc.insecure_channel(kvstore.address, options=channel_options()) as channel,
        Child("the workers' process", publish, kvstore.address, num_workers, num_blocks) as workers,
    ):
        stub = kvstore_pb2_grpc.KvStoreStub(channel)
        until_known(stub, known)
        to_serve, to_know, lookups = list[float](), list[float](), list[float]()
        busy = list[float]()
        for _ in range(rounds):
            time.sleep(SETTLE_S)
            kvstore.kill()
            killed_at = time.perf_counter()
            kvstore.start()
            stub.Snapshot(kvstore_pb2.SnapshotRequest(), timeout=30, wait_for_ready=True)
            served_at = time.perf_counter()
            asking = Lookups(kvstore.address)
            asking.start()
            until_known(stub, known)
            to_know.append(time.perf_counter() - served_at)
            busy.append(kvstore.cpu_seconds())
            to_serve.append(served_at - killed_at)
            lookups += asking.end()
        report.add(f"{size}: kvstore killed until it serves", "s", to_serve)
        report.add(f"{size}: from then until all is known", "s", to_know, aim=AIM_S)
        report.add(f"{size}: CPU time of the kvstore until then, its start included", "s", busy)
        report.add(f"{size}: lookups meanwhile", "ms", [1000 * each for each in lookups])
        in_time = sum(each < LOOKUP_LIMIT_S for each in lookups) / len(lookups)
        report.add(f"{size}: of these within {1000 * LOOKUP_LIMIT_S:g} ms", "%", [100 * in_time])

        seconds = []
        for number in range(rounds):
            workers.ask(number)
            until_known(stub, {n: size for n, size in known.items() if n != f"worker-{number}"})
            began_at = time.perf_counter()
            workers.ask()
            until_known(stub, known)
            seconds.append(time.perf_counter() - began_at)
        report.add(f"{size}: one worker started anew", "s", seconds, aim=AIM_S)
