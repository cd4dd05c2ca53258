"""An index by itself, called as the kvstore calls it; a process of its own for each number of workers."""

from __future__ import annotations

import asyncio
import gc
import multiprocessing
import random
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import asynccontextmanager
from functools import partial
from itertools import islice
from typing import NamedTuple

import psutil
from blockindex.contents import CHAIN, holdings, new_chain
from blockindex.valkey import running_valkey
from report import Report

from pagemesh.kvstore.index import BlockIndex
from pagemesh.kvstore.memory_index import MemoryIndex
from pagemesh.kvstore.redis_client import RedisStore
from pagemesh.kvstore.redis_index import RedisIndex
from pagemesh.telemetry.metrics import Metrics

TIDY_SLICE = 2048
CHAINS_AT_ONCE = 4
STORES_AT_ONCE = 4
EVENT = 16
AT_ONCE = 32
NUM_SAMPLES = 1000
COMMAND_TIMEOUT = 10.0


class Sampled(NamedTuple):
    """A figure on its way from the process that measured it."""

    name: str
    unit: str
    samples: list[float]


Call = Callable[[], Awaitable[object]]

Used = Callable[[], Awaitable[float]]
"""Bytes that the process of the index, or the server, takes."""


def measure(
    report: Report, kind: str, num_blocks: int, workers: Sequence[int], *, quick: bool
) -> None:
    """Fill an index for each number of workers, and time its calls."""
    num_blocks = num_blocks // 10 if quick else num_blocks
    report.settings |= {"index": kind, "blocks": num_blocks, "chain": CHAIN, "event": EVENT}
    for num_workers in workers:
        # A process that had a large heap before would not show what this one takes.
        spawn = multiprocessing.get_context("spawn")
        with ProcessPoolExecutor(1, mp_context=spawn) as pool:
            figures = pool.submit(_measure_one, kind, num_blocks, num_workers).result()
        for name, unit, samples in figures:
            report.add(f"{num_workers} workers: {name}", unit, samples)


def _measure_one(kind: str, num_blocks: int, num_workers: int) -> list[Sampled]:
    return asyncio.run(_measure(kind, num_blocks, num_workers))


async def _measure(kind: str, num_blocks: int, num_workers: int) -> list[Sampled]:
    async with _opened(kind) as (index, used):
        figures: list[Sampled] = []
        chains = await _fill(index, used, num_blocks, num_workers, figures)
        chance = random.Random(0)
        held = [chance.choice(chains) for _ in range(NUM_SAMPLES)]
        new = [new_chain() for _ in range(NUM_SAMPLES)]
        everywhere = new_chain()
        for worker in range(num_workers):
            await index.store(f"worker-{worker}", everywhere)

        def lookups(chains: Sequence[list[bytes]]) -> list[Call]:
            return [partial(index.lookup, names) for names in chains]

        def events(deed: Callable[..., Awaitable[object]], size: int) -> list[Call]:
            return [partial(deed, "worker-1", names[-size:]) for names in new]

        calls: dict[str, list[Call]] = {
            f"lookup of {CHAIN} blocks, all held": lookups(held),
            f"lookup of {CHAIN} blocks, none held": lookups(new),
            f"lookup of {CHAIN} blocks, all held by all": lookups([everywhere] * NUM_SAMPLES),
            f"event, {EVENT} blocks stored": events(index.store, EVENT),
            f"event, {EVENT} blocks removed": events(index.remove, EVENT),
            "event, 1 block stored": events(index.store, 1),
            "dropping a worker": [partial(index.drop_worker, "worker-0")],
        }
        for name, one_by_one in calls.items():
            figures.append(Sampled(name, "us", await _timed(one_by_one)))
        rates = [await _rate(index, held) for _ in range(3)]
        figures.append(Sampled(f"lookups, {AT_ONCE} at once", "1/s", rates))
        return figures + await _sweep(index)


@asynccontextmanager
async def _opened(kind: str) -> AsyncIterator[tuple[BlockIndex, Used]]:
    if kind == "memory":
        process = psutil.Process()

        async def resident() -> float:
            gc.collect()
            return float(process.memory_info().rss)

        yield MemoryIndex(), resident
        return
    with running_valkey() as url:
        store = RedisStore(url, Metrics(), timeout=COMMAND_TIMEOUT)

        async def used_memory() -> float:
            return float((await store.redis.info("memory"))["used_memory"])

        yield RedisIndex(store), used_memory
        await store.close()


async def _fill(
    index: BlockIndex, used: Used, num_blocks: int, num_workers: int, figures: list[Sampled]
) -> list[list[bytes]]:
    """Some of the chains that are held then."""
    for worker in range(num_workers):
        await index.add_worker(f"worker-{worker}", 2 * num_blocks)
    before = await used()
    chains: list[list[bytes]] = []
    every = max(1, num_blocks // CHAIN // CHAINS_AT_ONCE // NUM_SAMPLES)
    spent, number = 0.0, 0
    arriving = holdings(num_blocks, num_workers, CHAINS_AT_ONCE)
    while together := list(islice(arriving, STORES_AT_ONCE)):
        began_at = time.perf_counter()
        await asyncio.gather(*(index.store(f"worker-{w}", names) for w, names in together))
        spent += time.perf_counter() - began_at
        for _, names in together:
            if number % (2 * every) == 0:
                chains.append([bytes(bytearray(name)) for name in names[:CHAIN]])
            number += 1
    grown = await used() - before
    usage = await index.usage()
    figures.append(
        Sampled(
            f"blocks stored, 512 in each of {STORES_AT_ONCE} calls at once",
            "1/s",
            [usage.num_blocks / spent],
        )
    )
    figures.append(Sampled("memory per block, by the process", "B", [grown / usage.num_blocks]))
    published = usage.num_bytes / usage.num_blocks
    figures.append(Sampled("memory per block, as published", "B", [published]))
    return chains


async def _timed(calls: Sequence[Call]) -> list[float]:
    """Microseconds of each."""
    samples = []
    for call in calls:
        began_at = time.perf_counter()
        await call()
        samples.append(1e6 * (time.perf_counter() - began_at))
    return samples


async def _rate(index: BlockIndex, chains: Sequence[Sequence[bytes]]) -> float:
    """Lookups in a second by callers that wait for one answer each."""
    waiting = iter(chains)

    async def ask() -> None:
        for names in waiting:
            await index.lookup(names)

    began_at = time.perf_counter()
    await asyncio.gather(*(ask() for _ in range(AT_ONCE)))
    return len(chains) / (time.perf_counter() - began_at)


async def _sweep(index: BlockIndex) -> list[Sampled]:
    slices: list[float] = []
    has_more = True
    while has_more:
        began_at = time.perf_counter()
        has_more = await index.tidy(TIDY_SLICE)
        slices.append(1e3 * (time.perf_counter() - began_at))
    return [
        Sampled("sweeping behind it, in all", "s", [sum(slices) / 1e3]),
        Sampled("sweeping behind it, a slice", "ms", slices[:: 1 + len(slices) // NUM_SAMPLES]),
    ]
