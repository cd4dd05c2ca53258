"""How soon a kvstore that was killed knows everything again, and how lookups fare meanwhile.

The workers are real publishers with nothing behind them but caches of random names, in a process of their
own; the kvstore is one process, which is killed and started again at its port.
"""

from __future__ import annotations

import asyncio
import pickle
import random
import subprocess
import sys
import threading
import time
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from typing import Any, Final

import grpc
from child import Child
from mesh import free_port
from report import Report, make_parser

from pagemesh.cache.digest import CacheDigest, xor_names
from pagemesh.engine.interface import EngineLoad, StepOutput
from pagemesh.membership.publisher import Publisher
from pagemesh.rpc.channels import channel_options
from pagemesh.v1 import kvstore_pb2, kvstore_pb2_grpc, types_pb2

QUESTION: Final = "How soon does a killed kvstore know all blocks again?"

FINGERPRINT: Final = "random"
PROMPT_BLOCKS: Final = 128
"""Hashes in a lookup: 2,048 tokens."""
LOOKUP_PERIOD_S: Final = 0.005
DEADLINE_S: Final = 60.0
SETTLE_S: Final = 6.0
"""Between two rounds: connections that lasted are tried again at once."""
LOOKUP_TIMEOUT_MS: Final = 20.0
"""What routers wait by default."""


@dataclass
class Rebuild:
    """What one kill came to."""

    seconds_to_serve: float
    """From the kill until the new process answers."""
    seconds_to_know: float
    """From then on until all blocks of all workers are known."""
    lookup_ms: list[float] = field(default_factory=list)
    """Of the lookups in between."""


class Cache:
    """An engine that has nothing but names of blocks."""

    def __init__(self, num_blocks: int, seed: int) -> None:
        source = random.Random(seed)
        self.names = tuple(source.randbytes(16) for _ in range(num_blocks))
        self._digest = CacheDigest(num_blocks, xor_names(self.names))
        self.publisher: Publisher | None = None

    def publish_snapshot(self) -> None:
        """As an engine in its own process does: through a pipe, a moment later."""
        step = StepOutput(cache_snapshot=self.names, cache_digest=self._digest)
        asyncio.get_running_loop().call_later(0.01, self._deliver, pickle.dumps(step))

    def load(self) -> EngineLoad:
        """Idle."""
        return EngineLoad()

    def _deliver(self, pickled: bytes) -> None:
        assert self.publisher is not None
        self.publisher.on_step(pickle.loads(pickled))


def run_workers(parent: Connection, kvstore: str, num_workers: int, num_blocks: int) -> None:
    """Publish until the parent closes the pipe."""

    async def publish() -> None:
        publishers = []
        for number in range(num_workers):
            cache: Any = Cache(num_blocks, seed=number)
            cache.publisher = Publisher(kvstore, _worker(number, num_blocks), cache, links=tuple)
            cache.publisher.start()
            publishers.append(cache.publisher)
        await asyncio.to_thread(parent.poll, None)
        await asyncio.gather(*(publisher.close() for publisher in publishers))

    asyncio.run(publish())


def _worker(number: int, num_blocks: int) -> types_pb2.WorkerInfo:
    return types_pb2.WorkerInfo(
        worker_id=f"decode-{number}",
        epoch=1,
        role=types_pb2.WORKER_ROLE_DECODE,
        address=f"127.0.0.1:{1 + number}",
        model_name="random",
        model_fingerprint=FINGERPRINT,
        kv_layout=types_pb2.KvLayout(
            block_size=16, layer_count=1, kv_head_count=1, head_dim=64, dtype="bfloat16"
        ),
        block_count=num_blocks,
        max_model_len=32_768,
        max_num_seqs=64,
    )


class Lookups(threading.Thread):
    """Asks for a prefix every few milliseconds and notes how long the answers took."""

    def __init__(self, kvstore: str, prompt: bytes) -> None:
        super().__init__(daemon=True)
        self._kvstore = kvstore
        self._request = kvstore_pb2.LookupRequest(
            block_hashes=prompt, model_fingerprint=FINGERPRINT
        )
        self._ended = threading.Event()
        self.milliseconds: list[float] = []

    def run(self) -> None:
        """Ask until `end`."""
        with grpc.insecure_channel(self._kvstore, options=channel_options()) as channel:
            stub = kvstore_pb2_grpc.KvStoreStub(channel)
            while not self._ended.wait(LOOKUP_PERIOD_S):
                start = time.perf_counter()
                stub.Lookup(self._request, timeout=DEADLINE_S)
                self.milliseconds.append((time.perf_counter() - start) * 1000)

    def end(self) -> list[float]:
        """Stop asking; what was noted."""
        self._ended.set()
        self.join()
        return self.milliseconds


class KvStoreProcess:
    """`pagemesh kvstore` at a port that stays the same."""

    def __init__(self, *flags: str) -> None:
        self._flags = flags
        self._port = free_port()
        self.address = f"127.0.0.1:{self._port}"
        self._start()

    def restart(self) -> float:
        """Kill it and start it again; the seconds until it answers."""
        self.close()
        start = time.perf_counter()
        self._start()
        self.counts()
        return time.perf_counter() - start

    def counts(self) -> dict[str, int]:
        """Blocks of each worker that it knows, waiting until it answers."""
        deadline = time.perf_counter() + DEADLINE_S
        with grpc.insecure_channel(self.address, options=channel_options()) as channel:
            stub = kvstore_pb2_grpc.KvStoreStub(channel)
            while True:
                try:
                    state = stub.Snapshot(kvstore_pb2.SnapshotRequest(), timeout=DEADLINE_S)
                except grpc.RpcError:
                    if time.perf_counter() > deadline:
                        raise
                    time.sleep(0.01)
                    continue
                return {w.worker.worker_id: w.cached_block_count for w in state.workers}

    def await_blocks(self, num_workers: int, num_blocks: int) -> float:
        """Seconds until it knows so many blocks of so many workers."""
        start = time.perf_counter()
        while list(self.counts().values()) != [num_blocks] * num_workers:
            if time.perf_counter() - start > DEADLINE_S:
                raise RuntimeError(f"after {DEADLINE_S:g} s it knows {self.counts()}")
            time.sleep(0.02)
        return time.perf_counter() - start

    def close(self) -> None:
        """Kill it."""
        self._process.kill()
        self._process.wait()

    def _start(self) -> None:
        self._process = subprocess.Popen(
            [
                sys.executable,
                "-m",
                "pagemesh.cli",
                "kvstore",
                "--port",
                str(self._port),
                *self._flags,
            ],
            stderr=subprocess.DEVNULL,
        )


def measure(
    num_workers: int, num_blocks: int, num_rounds: int, kvstore_flags: tuple[str, ...] = ()
) -> list[Rebuild]:
    """Kill a kvstore that knows `num_blocks` blocks of each worker, a number of times."""
    prompt = b"".join(Cache(PROMPT_BLOCKS, seed=0).names)
    kvstore = KvStoreProcess(*kvstore_flags)
    try:
        with Child("workers", run_workers, kvstore.address, num_workers, num_blocks):
            kvstore.await_blocks(num_workers, num_blocks)
            rounds = []
            for _ in range(num_rounds):
                time.sleep(SETTLE_S)
                seconds_to_serve = kvstore.restart()
                lookups = Lookups(kvstore.address, prompt)
                lookups.start()
                seconds_to_know = kvstore.await_blocks(num_workers, num_blocks)
                rounds.append(Rebuild(seconds_to_serve, seconds_to_know, lookups.end()))
            return rounds
    finally:
        kvstore.close()


def main() -> None:
    """Measure, print and write."""
    parser = make_parser("rebuild", QUESTION)
    parser.add_argument("--workers", type=int, default=8, help="workers (default: 8)")
    parser.add_argument(
        "--blocks", type=int, default=100_000, help="blocks of each worker (default: 100,000)"
    )
    parser.add_argument("--index", default="memory", help="as of pagemesh kvstore")
    options = parser.parse_args()
    num_rounds = 2 if options.quick else 8
    rounds = measure(options.workers, options.blocks, num_rounds, ("--index", options.index))
    settings = {"workers": options.workers, "blocks": options.blocks, "index": options.index}
    report = Report("rebuild", QUESTION, settings)
    report.add("killed until it serves", "s", [r.seconds_to_serve for r in rounds])
    report.add("until all is known", "s", [r.seconds_to_know for r in rounds], aim=2.0)
    lookups = [ms for r in rounds for ms in r.lookup_ms]
    report.add("lookups meanwhile", "ms", lookups)
    in_time = 100 * sum(ms < LOOKUP_TIMEOUT_MS for ms in lookups) / len(lookups)
    report.add(f"of them within {LOOKUP_TIMEOUT_MS:g} ms", "%", [in_time])
    report.print()
    report.write(options.json)


if __name__ == "__main__":
    main()
