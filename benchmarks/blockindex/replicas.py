"""What more kvstores on one Redis bring: each with a router and workers of its own, all at the same time."""

from __future__ import annotations

import asyncio
import time
from contextlib import ExitStack
from multiprocessing.connection import Connection

import grpc
from blockindex.contents import new_chain
from blockindex.over_grpc import AT_ONCE, EVENT, Streams, lookups_at_once
from blockindex.processes import KvStoreProcess, running_kvstore
from blockindex.valkey import running_valkey
from child import Child, questions
from report import Report

from pagemesh.rpc.channels import open_channel
from pagemesh.v1 import kvstore_pb2_grpc

NUM_CHAINS = 500
NUM_LOOKUPS = 3000
NUM_EVENTS = 3000
ROUNDS = 3


def measure(report: Report, *, quick: bool) -> None:
    """Ask and tell one, then two replicas; and what of it the kvstores spend."""
    rounds = 1 if quick else ROUNDS
    report.settings |= {"lookups": NUM_LOOKUPS, "at_once": AT_ONCE, "rounds": rounds}
    for num_replicas in (1, 2):
        with ExitStack() as resources:
            url = resources.enter_context(running_valkey())
            stores = [resources.enter_context(running_kvstore(url)) for _ in range(num_replicas)]
            peers = [
                resources.enter_context(Child("a peer", _peer, store.address, number))
                for number, store in enumerate(stores)
            ]
            for peer in peers:
                peer.ask("ready")
            for _ in range(rounds):
                _take_turn(report, f"{num_replicas} replicas: ", stores, peers)


def _take_turn(report: Report, of: str, stores: list[KvStoreProcess], peers: list[Child]) -> None:
    for deed, total in (("lookups", NUM_LOOKUPS), ("events", NUM_EVENTS)):
        cpu_before = sum(store.cpu_seconds() for store in stores)
        began_at = time.perf_counter()
        for peer in peers:
            peer.tell(deed)
        samples = [sample for peer in peers for sample in peer.answer()]
        spent = time.perf_counter() - began_at
        cpu = sum(store.cpu_seconds() for store in stores) - cpu_before
        done = total * len(stores)
        report.sample(f"{of}{deed}", "1/s", done / spent)
        report.sample(f"{of}CPU time of the kvstores for one of the {deed}", "us", 1e6 * cpu / done)
        if samples:
            report.figures = [f for f in report.figures if f.name != f"{of}each lookup"]
            report.add(f"{of}each lookup", "ms", samples)


def _peer(parent: Connection, kvstore: str, number: int) -> None:
    asyncio.run(_ask_and_tell(parent, kvstore, number))


async def _ask_and_tell(parent: Connection, kvstore: str, number: int) -> None:
    async with open_channel(kvstore) as channel:
        with grpc.insecure_channel(kvstore) as asking:
            stub: kvstore_pb2_grpc.KvStoreAsyncStub = kvstore_pb2_grpc.KvStoreStub(channel)
            streams = Streams(stub, kvstore_pb2_grpc.KvStoreStub(asking))
            await streams.open(number, 1_000_000)
            chains = [new_chain() for _ in range(NUM_CHAINS)]
            for chain in chains:
                streams.tell(number, chain)
            asked = [b"".join(chains[n % NUM_CHAINS]) for n in range(NUM_LOOKUPS)]
            coming = questions(parent)
            while (question := await asyncio.to_thread(next, coming, None)) is not None:
                samples: list[float] = []
                if question == "lookups":
                    samples, _ = await lookups_at_once(stub, asked)
                elif question == "events":
                    for _ in range(NUM_EVENTS):
                        streams.tell(number, new_chain(EVENT))
                await streams.flush()
                parent.send(samples)
