"""How fast does KV get from one worker to another, beside memcpy, bare sockets and gRPC alone?

And what do the checks cost?

Two real workers, each a process, whose engines have KV and no model: a request is submitted to the decode
worker, which has the prefill worker send it the whole prompt's KV. The time counts from the blocks'
reservation to the last verified block. The pair without checks differs in one thing: its checksums are
all zero, on both sides.
"""

from __future__ import annotations

import asyncio
import time
from collections import defaultdict
from collections.abc import Sequence
from contextlib import AsyncExitStack
from itertools import count
from types import TracebackType
from typing import Self

from kv.checksums import leave_out_checksums
from kv.grpc_alone import GrpcAlone
from kv.hollow_engine import HollowSettings, num_blocks_for, prompt_of
from kv.hollow_worker import HollowWorker, WorkerSettings
from kv.raw_paths import RAW, RawPair, Transfer
from kv.sessions import TimedSession
from report import Report
from turns import turns

from pagemesh.core.kv import KvLayout
from pagemesh.v1 import decode_pb2

LAYOUT = KvLayout.uniform(16, num_layers=12, num_kv_heads=4, head_dim=64, dtype="bfloat16")
"""Of the 160M model."""

PATHS = {"gRPC": ("raw TCP", 0.7), "host memory": ("memcpy", 0.5)}
"""Ways from worker to worker: what each is compared with, and the share of it to reach."""

GRPC_ALONE = "gRPC alone"

UNCHECKED = "without checksums"
MOST_CHECKS = 0.05
"""Of a transfer's time."""


class WorkerPair:
    """A prefill and a decode worker; every transfer is of another prompt."""

    def __init__(self, num_blocks: int, *, share_memory: bool, checks: bool) -> None:
        self._num_blocks = num_blocks
        self._numbers = count(1)
        prepare = None if checks else leave_out_checksums
        # A block more, for the token that shows that the KV was used.
        engine = HollowSettings(LAYOUT, "hollow", num_blocks + 1)
        self._sender = HollowWorker(WorkerSettings("prefill", engine, share_memory, prepare))
        self._receiver = HollowWorker(WorkerSettings("decode", engine, share_memory, prepare))
        self._stack = AsyncExitStack()

    async def __aenter__(self) -> Self:
        sender = self._stack.enter_context(self._sender)
        receiver = self._stack.enter_context(self._receiver)
        self._plan = decode_pb2.PrefillPlan(workers=[sender.peer])
        self._session = await self._stack.enter_async_context(TimedSession(receiver.peer.address))
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self._stack.aclose()

    async def run(self) -> Transfer:
        """Have one prompt's KV sent; RuntimeError when not all of it was."""
        prompt = prompt_of(self._num_blocks, LAYOUT, next(self._numbers))
        sender_cpu, receiver_cpu = self._cpu_seconds()
        answer = await self._session.submit(prompt, 2, self._plan)
        await answer.until_over()
        taken = self._receiver.next_import()
        if taken.num_valid_tokens != len(prompt):
            raise RuntimeError(f"{taken.num_valid_tokens} of {len(prompt)} tokens were received")
        sender_cpu_now, receiver_cpu_now = self._cpu_seconds()
        return Transfer(taken.seconds, sender_cpu_now - sender_cpu, receiver_cpu_now - receiver_cpu)

    def _cpu_seconds(self) -> tuple[float, float]:
        return _cpu_seconds(self._sender.pid), _cpu_seconds(self._receiver.pid)


def _cpu_seconds(pid: int) -> float:
    """CPU time of another process, exact to the nanosecond: Linux' clock of that process."""
    return time.clock_gettime((~pid << 3) | 2)


def measure(report: Report, *, quick: bool) -> None:
    """All paths in turn, round by round."""
    asyncio.run(_measure(report, num_rounds=5 if quick else 20, mebibytes=128 if quick else 512))


async def _measure(report: Report, num_rounds: int, mebibytes: int) -> None:
    num_blocks = num_blocks_for(LAYOUT, mebibytes << 20)
    num_bytes = num_blocks * LAYOUT.num_bytes
    report.settings |= {"transfer_mib": mebibytes, "transfer_rounds": num_rounds}
    taken: dict[str, list[Transfer]] = defaultdict(list)
    with RawPair(num_bytes) as raw, GrpcAlone(num_bytes) as grpc_alone:
        async with AsyncExitStack() as stack:
            pairs = {}
            for path in PATHS:
                for name, checks in ((path, True), (f"{path} {UNCHECKED}", False)):
                    shares = path == "host memory"
                    pair = WorkerPair(num_blocks, share_memory=shares, checks=checks)
                    pairs[name] = await stack.enter_async_context(pair)
            names = [*RAW, GRPC_ALONE, *pairs]
            # The first round only warms up.
            for number in range(num_rounds + 1):
                for name in turns(names, number):
                    if name in pairs:
                        one = await pairs[name].run()
                    else:
                        one = grpc_alone.run() if name == GRPC_ALONE else raw.run(name)
                    if number:
                        taken[name].append(one)
    _add_figures(report, taken, num_bytes / 1e9)


def _add_figures(report: Report, taken: dict[str, list[Transfer]], gigabytes: float) -> None:
    for name, transfers in taken.items():
        report.add(f"{name}", "GB/s", [gigabytes / one.seconds for one in transfers])
        if name != "memcpy":
            cpu = [one.sender_cpu / gigabytes for one in transfers]
            report.add(f"{name}: CPU of the sender", "s/GB", cpu)
        cpu = [one.receiver_cpu / gigabytes for one in transfers]
        report.add(f"{name}: CPU of the receiver", "s/GB", cpu)
    report.add(
        f"{GRPC_ALONE}: share of raw TCP's speed", "", _ratios(taken["raw TCP"], taken[GRPC_ALONE])
    )
    report.add(
        f"gRPC: share of {GRPC_ALONE}'s speed", "", _ratios(taken[GRPC_ALONE], taken["gRPC"])
    )
    for path, (base, aim) in PATHS.items():
        report.add(
            f"{path}: share of {base}'s speed",
            "",
            _ratios(taken[base], taken[path]),
            at_least=aim,
        )
        pairs = list(zip(taken[f"{path} {UNCHECKED}"], taken[path], strict=True))
        report.add(
            f"{path}: checksums' share of the time",
            "",
            [1 - without.seconds / checked.seconds for without, checked in pairs],
            aim=MOST_CHECKS,
        )
        report.add(
            f"{path}: checksums' share of both CPUs' time",
            "",
            [1 - without.cpu / checked.cpu for without, checked in pairs],
        )


def _ratios(ones: Sequence[Transfer], others: Sequence[Transfer]) -> list[float]:
    """One's seconds over the other's, round by round."""
    return [one.seconds / other.seconds for one, other in zip(ones, others, strict=True)]
