"""How soon the index is whole again when the kvstore or a worker was killed and started anew, and how lookups
fare meanwhile.
"""

from __future__ import annotations

import time

import grpc
from blockindex.lookups import Lookups
from blockindex.processes import KvStoreProcess, running_kvstore, until_known
from blockindex.publishing import publish
from blockindex.valkey import running_valkey
from child import Child
from report import Report

from pagemesh.rpc.channels import channel_options
from pagemesh.v1 import kvstore_pb2, kvstore_pb2_grpc

SIZES = ((8, 100_000), (64, 15_625), (512, 1_953))
"""Workers, and blocks of each."""
QUICK_SIZES = ((8, 12_500),)
AIM_S = 2.0
SETTLE_S = 6.0
"""Before the kvstore is killed: connections that lasted are tried again at once."""
LOOKUP_LIMIT_S = 0.02
"""What routers wait by default."""


def measure(report: Report, kind: str, *, quick: bool) -> None:
    """Kill and start each, a few times; `kind` is memory or redis."""
    rounds = 1 if quick else 3
    report.settings |= {"rounds": rounds}
    for num_workers, num_blocks in QUICK_SIZES if quick else SIZES:
        size = f"{num_workers} workers of {num_blocks:,} blocks"
        if kind == "memory":
            with running_kvstore("memory") as kvstore:
                _measure(report, size, kvstore, num_workers, num_blocks, rounds)
        else:
            with running_valkey() as url, running_kvstore(url) as kvstore:
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
            to_serve.append(served_at - killed_at)
            lookups += asking.end()
        report.add(f"{size}: kvstore killed until it serves", "s", to_serve)
        report.add(f"{size}: from then until all is known", "s", to_know, aim=AIM_S)
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
