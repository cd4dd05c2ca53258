"""A real kvstore process, and what it knows."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import grpc
import psutil
from mesh import free_port

from pagemesh.v1 import kvstore_pb2, kvstore_pb2_grpc, types_pb2

DEADLINE_S = 60.0
POLL_S = 0.005
LONGEST_POLL_S = 0.5
MODEL = "model"


class KvStoreProcess:
    """One that can be killed and started again at its address."""

    def __init__(self, index: str) -> None:
        """`index` as --index takes it."""
        self._port = free_port()
        self._index = index
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def address(self) -> str:
        """host:port."""
        return f"127.0.0.1:{self._port}"

    def start(self) -> None:
        """Start it; returns before it serves."""
        arguments = ("kvstore", "--port", str(self._port), "--index", self._index)
        self._process = subprocess.Popen(
            (sys.executable, "-m", "pagemesh.cli", *arguments, "--log-level", "error"),
        )

    def cpu_seconds(self) -> float:
        """What it has used since its start."""
        assert self._process is not None
        times = psutil.Process(self._process.pid).cpu_times()
        return times.user + times.system

    def kill(self) -> None:
        """SIGKILL. Idempotent."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None


@contextmanager
def running_kvstore(index: str) -> Iterator[KvStoreProcess]:
    """A kvstore that serves, and is killed at the end."""
    process = KvStoreProcess(index)
    process.start()
    try:
        with grpc.insecure_channel(process.address) as channel:
            grpc.channel_ready_future(channel).result(DEADLINE_S)
        yield process
    finally:
        process.kill()


def make_worker(number: int, num_blocks: int, epoch: int = 1) -> types_pb2.WorkerInfo:
    """What a worker registers as."""
    return types_pb2.WorkerInfo(
        worker_id=f"worker-{number}",
        epoch=epoch,
        role=types_pb2.WORKER_ROLE_DECODE,
        address=f"127.0.0.1:{20_000 + number}",
        model_name=MODEL,
        model_fingerprint=MODEL,
        kv_layout=types_pb2.KvLayout(
            block_size=16, layer_count=32, kv_head_count=8, head_dim=128, dtype="bfloat16"
        ),
        block_count=num_blocks,
        max_model_len=131_072,
        max_num_seqs=64,
    )


def until_known(
    stub: kvstore_pb2_grpc.KvStoreStub, num_blocks: dict[str, int], *, beside: bool = False
) -> None:
    """Wait until the kvstore knows so many blocks of each worker, and no other ones but those `beside` them;
    RuntimeError when it never does.
    """
    deadline = time.monotonic() + DEADLINE_S
    known: dict[str, int] = {}
    while time.monotonic() < deadline:
        asked_at = time.monotonic()
        with suppress(grpc.RpcError):
            state = stub.Snapshot(kvstore_pb2.SnapshotRequest(), timeout=5, wait_for_ready=True)
            known = {entry.worker.worker_id: entry.cached_block_count for entry in state.workers}
        if known == num_blocks or (beside and known.items() >= num_blocks.items()):
            return
        # To be asked takes the kvstore's time: most of it is to be its own.
        time.sleep(min(LONGEST_POLL_S, POLL_S + 4 * (time.monotonic() - asked_at)))
    raise RuntimeError(f"{sum(known.values())} of {sum(num_blocks.values())} blocks are known")
