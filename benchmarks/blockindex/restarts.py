"""How soon the index is whole again when the kvstore or a worker was killed and started anew."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from contextlib import AsyncExitStack
from typing import cast

from blockindex.contents import new_chain
from blockindex.processes import KvStoreProcess, make_worker, running_kvstore, until_known
from blockindex.valkey import running_valkey
from report import Report

from pagemesh.cache.digest import CacheDigest, xor_names
from pagemesh.engine.interface import Engine, EngineLoad, StepOutput
from pagemesh.membership.publisher import Publisher
from pagemesh.rpc.channels import open_channel
from pagemesh.v1 import kvstore_pb2, kvstore_pb2_grpc, types_pb2

SIZES = ((8, 12_500), (64, 15_625), (512, 1_953))
"""Workers, and blocks of each."""
AIM_S = 2.0


class _Cache:
    """A worker that holds blocks: the real publisher over an engine that does nothing else."""

    def __init__(self, kvstore: str, info: types_pb2.WorkerInfo, names: Sequence[bytes]) -> None:
        self._names = names
        self._digest = CacheDigest(len(names), xor_names(names))
        self.publisher = Publisher(kvstore, info, cast("Engine", self), links=tuple)

    def publish_snapshot(self) -> None:
        """As an engine does, in its next step."""
        step = StepOutput(cache_snapshot=self._names, cache_digest=self._digest)
        asyncio.get_running_loop().call_soon(self.publisher.on_step, step)

    def load(self) -> EngineLoad:
        """Nothing to do."""
        return EngineLoad()


def measure(report: Report, *, quick: bool) -> None:
    """Kill and start each, a few times."""
    rounds = 1 if quick else 3
    report.settings |= {"rounds": rounds}
    for num_workers, num_blocks in SIZES[:1] if quick else SIZES:
        with running_kvstore("memory") as kvstore:
            asyncio.run(_measure(report, "memory", kvstore, num_workers, num_blocks, rounds))
        with running_valkey() as url, running_kvstore(url) as kvstore:
            asyncio.run(_measure(report, "redis", kvstore, num_workers, num_blocks, rounds))


async def _measure(
    report: Report,
    kind: str,
    kvstore: KvStoreProcess,
    num_workers: int,
    num_blocks: int,
    rounds: int,
) -> None:
    size = f"{kind}: {num_workers} workers of {num_blocks} blocks"
    contents = [new_chain(num_blocks) for _ in range(num_workers)]
    known = {f"worker-{number}": num_blocks for number in range(num_workers)}
    async with AsyncExitStack() as stack:
        channel = await stack.enter_async_context(open_channel(kvstore.address))
        stub: kvstore_pb2_grpc.KvStoreAsyncStub = kvstore_pb2_grpc.KvStoreStub(channel)
        caches = [
            _Cache(kvstore.address, make_worker(number, 2 * num_blocks), names)
            for number, names in enumerate(contents)
        ]
        for cache in caches:
            cache.publisher.start()
            stack.push_async_callback(cache.publisher.close)
        await until_known(stub, known)

        from_start, from_serving = [], []
        for _ in range(rounds):
            kvstore.kill()
            kvstore.start()
            began_at = time.perf_counter()
            await stub.Snapshot(kvstore_pb2.SnapshotRequest(), timeout=30, wait_for_ready=True)
            served_at = time.perf_counter()
            await until_known(stub, known)
            from_start.append(time.perf_counter() - began_at)
            from_serving.append(time.perf_counter() - served_at)
        report.add(f"{size}, kvstore restarted, from its start", "s", from_start)
        report.add(f"{size}, kvstore restarted, from when it serves", "s", from_serving, aim=AIM_S)

        seconds = []
        for number in range(rounds):
            await caches[number].publisher.close()
            others = {name: size for name, size in known.items() if name != f"worker-{number}"}
            await until_known(stub, others)
            info = make_worker(number, 2 * num_blocks, epoch=2)
            cache = _Cache(kvstore.address, info, contents[number])
            began_at = time.perf_counter()
            cache.publisher.start()
            stack.push_async_callback(cache.publisher.close)
            await until_known(stub, known)
            seconds.append(time.perf_counter() - began_at)
        report.add(f"{size}, one worker restarted", "s", seconds, aim=AIM_S)
