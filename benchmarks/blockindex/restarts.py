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
from redis import Redis
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
        with ExitStack() as resources:
            url = "memory" if kind == "memory" else resources.enter_context(running_valkey())
            kvstore = resources.enter_context(running_kvstore(url))
            arguments = kvstore.address, num_workers, num_blocks
            workers = resources.enter_context(Child("the workers' process", publish, *arguments))
            channel = grpc.insecure_channel(kvstore.address, options=channel_options())
            stub = kvstore_pb2_grpc.KvStoreStub(resources.enter_context(channel))
            restarts = _Restarts(report, kvstore, stub, workers, num_workers, num_blocks)
            restarts.of_the_kvstore("kvstore killed", rounds)
            if kind == "redis":
                restarts.of_the_kvstore("kvstore killed and Redis emptied", 1, flushed=url)
            restarts.of_workers(rounds)


class _Restarts:
    """Of one mesh. Each block that the workers have is known when it is made, and after each of its methods."""

    def __init__(
        self,
        report: Report,
        kvstore: KvStoreProcess,
        stub: kvstore_pb2_grpc.KvStoreStub,
        workers: Child,
        num_workers: int,
        num_blocks: int,
    ) -> None:
        """`workers` is the process in which so many hold so many blocks each."""
        self._report = report
        self._kvstore = kvstore
        self._stub = stub
        self._workers = workers
        self._size = f"{num_workers} workers of {num_blocks:,} blocks"
        self._known = {f"worker-{number}": num_blocks for number in range(num_workers)}
        until_known(stub, self._known)

    def of_the_kvstore(self, what: str, rounds: int, *, flushed: str = "") -> None:
        """Kill and start it; where `flushed` is a Redis, that has lost everything meanwhile."""
        to_serve, to_know, lookups = list[float](), list[float](), list[float]()
        busy = list[float]()
        for _ in range(rounds):
            time.sleep(SETTLE_S)
            self._kvstore.kill()
            killed_at = time.perf_counter()
            # Of each worker it is known what it holds once its latest block is: that came while nobody listened.
            self._workers.ask()
            self._known = {worker: count + 1 for worker, count in self._known.items()}
            if flushed:
                Redis.from_url(flushed).flushall()
            self._kvstore.start()
            self._stub.Lookup(kvstore_pb2.LookupRequest(), timeout=30, wait_for_ready=True)
            served_at = time.perf_counter()
            asking = Lookups(self._kvstore.address)
            asking.start()
            until_known(self._stub, self._known)
            to_know.append(time.perf_counter() - served_at)
            busy.append(self._kvstore.cpu_seconds())
            to_serve.append(served_at - killed_at)
            lookups += asking.end()
        add, named = self._report.add, f"{self._size}: {what}"
        add(f"{named}: until it serves", "s", to_serve)
        add(f"{named}: from then until all is known", "s", to_know, aim=AIM_S)
        add(f"{named}: CPU time of the kvstore until then, its start included", "s", busy)
        add(f"{named}: lookups meanwhile", "ms", [1000 * each for each in lookups])
        in_time = sum(each < LOOKUP_LIMIT_S for each in lookups) / len(lookups)
        add(f"{named}: of these within {1000 * LOOKUP_LIMIT_S:g} ms", "%", [100 * in_time])

    def of_workers(self, rounds: int) -> None:
        """End one and start it anew, with what it held."""
        seconds = []
        for number in range(rounds):
            self._workers.ask(number)
            left = {n: count for n, count in self._known.items() if n != f"worker-{number}"}
            until_known(self._stub, left)
            began_at = time.perf_counter()
            self._workers.ask()
            until_known(self._stub, self._known)
            seconds.append(time.perf_counter() - began_at)
        self._report.add(f"{self._size}: one worker started anew", "s", seconds, aim=AIM_S)
