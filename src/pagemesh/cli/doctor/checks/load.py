"""Whether requests wait for longer than they need to."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from pagemesh.cli.doctor.facts import Facts
from pagemesh.cli.doctor.findings import Finding, Result, Status
from pagemesh.cli.doctor.words import count
from pagemesh.v1 import process_pb2

NAME: Final = "load"

FEW_BLOCKS: Final = 0.05
"""With less than this share of its blocks free, what waits on a worker waits for memory."""


def check(facts: Facts) -> Result:
    """What the workers last reported."""
    members = facts.members().values()
    if not members:
        return Result(NAME, "no worker reported any", is_skipped=True)
    findings = [finding for member in members for finding in _judge(member)]
    running = sum(member.load.running_request_count for member in members)
    waiting = sum(member.load.waiting_request_count for member in members)
    return Result(NAME, f"{running} running and {waiting} waiting requests", findings)


def _judge(member: process_pb2.MemberDescription) -> Iterator[Finding]:
    worker, load = member.worker, member.load
    waiting = load.waiting_request_count
    if waiting and load.free_block_count < FEW_BLOCKS * worker.block_count:
        yield Finding(
            Status.WARNING,
            worker.worker_id,
            f"{count(waiting, 'request')} wait there for KV blocks, of which {load.free_block_count} of"
            f" {worker.block_count} are free",
            "Give it more memory with --kv-cache-memory or --gpu-memory-utilization, or start more workers of the"
            " model",
        )
    elif waiting > worker.max_num_seqs:
        yield Finding(
            Status.WARNING,
            worker.worker_id,
            f"{count(waiting, 'request')} wait there, more than it runs at once ({worker.max_num_seqs}): their first"
            " tokens come late",
            "Start more workers of the model; if its device is not busy, raise --max-num-seqs",
        )
