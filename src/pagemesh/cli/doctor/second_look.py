"""Asks those that answered once more, and has workers try to reach each other meanwhile."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Mapping
from dataclasses import replace
from datetime import timedelta
from typing import Final

import grpc

from pagemesh.cli.doctor.asking import describe, metadata_for, open_to
from pagemesh.cli.doctor.facts import Examined, Facts
from pagemesh.client.credentials import Metadata
from pagemesh.rpc.identity import Identity
from pagemesh.rpc.process import contract_digest, package_version
from pagemesh.v1 import process_pb2, process_pb2_grpc, types_pb2

_REACH_SHARE: Final = 0.8
"""Of the time, for workers that try to reach others; the answer still has to come."""

_BETWEEN_READINGS_S: Final = 0.5
"""Long enough for what is under way to arrive: what differs twice, and did not change, differs."""

_MAX_PEERS: Final = 16
"""Workers that each worker tries to reach. In a large mesh each pair would be too many."""

_MAX_AT_ONCE: Final = 128
"""Processes that are asked at the same time."""


class SecondLook:
    """At a mesh of which it is known who is there, until the loop's time `end`."""

    def __init__(
        self, first: Facts, metadata: Metadata, identity: Identity | None, end: float
    ) -> None:
        self._first = first
        self._metadata = metadata
        self._identity = identity
        self._end = end
        self._known = first.known_workers()
        self._places = asyncio.Semaphore(_MAX_AT_ONCE)
        self._again: dict[str, Examined] = {}
        self._reached: dict[str, process_pb2.ReachResponse] = {}

    async def facts(self) -> Facts:
        """What was known before, and what came to it."""
        first = self._first
        answered = [each for each in first.processes if each.readings and "//" not in each.address]
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout_at(self._end):
                await asyncio.gather(
                    *(self._read(process) for process in answered),
                    *(self._reach(worker) for worker, _ in first.workers()),
                )
        return replace(
            first,
            processes=[self._again.get(each.address, each) for each in first.processes],
            reached=self._reached,
            own_version=package_version("pagemesh"),
            own_contract=contract_digest(),
        )

    async def _read(self, process: Examined) -> None:
        await asyncio.sleep(min(_BETWEEN_READINGS_S, self._seconds_left() / 2))
        metadata = metadata_for(process.label, self._metadata)
        with contextlib.suppress(grpc.aio.AioRpcError):
            async with self._places, open_to(process.leads[0], self._identity) as channel:
                reading = await describe(channel, self._seconds_left(), metadata)
            readings = (*process.readings, reading)
            self._again[process.address] = replace(process, readings=readings)

    async def _reach(self, worker: Examined) -> None:
        peers = _peers_of(worker, self._known)
        if not peers:
            return
        seconds = self._seconds_left()
        request = process_pb2.ReachRequest(peers=peers)
        request.timeout.FromTimedelta(timedelta(seconds=min(10.0, seconds * _REACH_SHARE)))
        with contextlib.suppress(grpc.aio.AioRpcError):
            async with self._places, open_to(worker.leads[0], self._identity) as channel:
                stub: process_pb2_grpc.PeersAsyncStub = process_pb2_grpc.PeersStub(channel)
                self._reached[worker.address] = await stub.Reach(request, timeout=seconds)

    def _seconds_left(self) -> float:
        return self._end - asyncio.get_running_loop().time()


def _peers_of(
    worker: Examined, known: Mapping[str, types_pb2.WorkerInfo]
) -> list[types_pb2.PeerWorker]:
    """From whom the worker might be sent KV, as many as it is to try: its neighbours in the order of names, so that
    everybody is tried by somebody."""
    own = worker.said.worker.worker if worker.said is not None else types_pb2.WorkerInfo()
    alike = sorted(
        info.worker_id
        for info in known.values()
        if info.model_fingerprint == own.model_fingerprint
        and info.arithmetic == own.arithmetic
        and info.worker_id != own.worker_id
    )
    behind = [worker_id for worker_id in alike if worker_id > own.worker_id]
    before = [worker_id for worker_id in alike if worker_id < own.worker_id]
    return [
        types_pb2.PeerWorker(
            worker_id=worker_id, address=known[worker_id].address, epoch=known[worker_id].epoch
        )
        for worker_id in (behind + before)[:_MAX_PEERS]
    ]
