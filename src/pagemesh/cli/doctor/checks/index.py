"""Whether the index knows what the workers' caches hold."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from pagemesh.cli.doctor.facts import Examined, Facts
from pagemesh.cli.doctor.findings import Finding, Result, Status
from pagemesh.cli.doctor.words import count
from pagemesh.v1 import kvstore_pb2

NAME: Final = "index"


def check(facts: Facts) -> Result:
    """Compares each worker's own count with what the kvstores believe, and the kvstores with each other."""
    kvstores = facts.kvstores()
    if not kvstores:
        return Result(NAME, "no kvstore answered", is_skipped=True)
    members = facts.members()
    findings = [*_unreadable(facts), *_diverged(facts), *_replicas_differ(facts)]
    num_blocks = sum(member.believed.block_count for member in members.values())
    num_righted = sum(member.difference_count for member in members.values())
    righted = f"; it was put right {count(num_righted, 'time')}" if num_righted else ""
    summary = f"{count(num_blocks, 'block')} of {count(len(members), 'worker')}, in {kvstores[0][1].index}"
    return Result(NAME, summary + righted, findings)


def _unreadable(facts: Facts) -> Iterator[Finding]:
    for name, kvstore in facts.kvstores():
        if kvstore.index_error:
            yield Finding(
                Status.WRONG,
                name,
                f"Its index, {kvstore.index}, cannot be read: {kvstore.index_error}. Requests are routed by load"
                " alone, and cached prompts are computed again",
                "See whether Redis runs, whether it can be reached from there, and its log",
            )


def _diverged(facts: Facts) -> Iterator[Finding]:
    for worker_id, member in facts.members().items():
        mine = [each for each, worker in facts.workers() if worker.worker.worker_id == worker_id]
        if not member.differs and not any(_differs(facts, each, worker_id) for each in mine):
            continue
        believed = member.believed.block_count
        held = mine[0].said.worker.held.block_count if mine and mine[0].said else None
        counts = f"{count(believed, 'block')}" + (
            "" if held is None else f", and it holds {held} by its own count"
        )
        yield Finding(
            Status.WRONG,
            worker_id,
            f"The index believes that it holds {counts}: prompts are sent to it for KV that is not there, or"
            " computed again though it has them. The kvstore asks for a snapshot by itself, and that did not help",
            "Restart the worker, which begins with an empty cache; if it comes back, report it with the lines"
            " index_diverged of the kvstore's log",
        )


def _differs(facts: Facts, worker: Examined, worker_id: str) -> bool:
    """Whether worker and index said something else of each other twice, while neither changed."""
    held = [reading.said.worker.held for reading in worker.readings]
    believed = [
        member.believed
        for each in facts.processes
        for reading in each.readings
        for member in reading.said.kvstore.members
        if member.worker.worker_id == worker_id
        and member.publishes_here
        and member.HasField("believed")
    ]
    if len(held) < 2 or len(believed) < 2 or not held[-1].names_xor:
        return False
    return all(each == held[0] for each in held) and all(
        each == believed[0] and each != held[0] for each in believed
    )


def _replicas_differ(facts: Facts) -> Iterator[Finding]:
    kvstores = facts.kvstores()
    if len(kvstores) > 1 and any(kvstore.index == "memory" for _, kvstore in kvstores):
        yield Finding(
            Status.WRONG,
            "kvstores",
            "There are several, and one at least keeps its index in memory: each knows only the blocks of the"
            " workers that publish to it",
            "Give all of them the same --index redis://host:port/db, or run only one",
        )
        return
    indexes = {kvstore.index for _, kvstore in kvstores}
    if len(indexes) > 1:
        yield Finding(
            Status.WRONG,
            "kvstores",
            f"They keep their indexes in different places: {', '.join(sorted(indexes))}",
            "Give all of them the same --index",
        )
        return
    for worker_id in sorted({m.worker.worker_id for _, k in kvstores for m in k.members}):
        if _is_told_apart(facts, worker_id):
            yield Finding(
                Status.WRONG,
                worker_id,
                "The kvstores believe different things of what it holds, though they share an index: a prompt's"
                " way depends on which of them is asked",
                "Check that --index names the same server and the same database everywhere; restart the kvstore"
                " that is wrong",
            )


def _is_told_apart(facts: Facts, worker_id: str) -> bool:
    """Whether two replicas said different things of a worker in all readings, while neither changed."""
    per_kvstore: list[list[kvstore_pb2.CacheDigest]] = [
        [
            member.believed
            for reading in each.readings
            for member in reading.said.kvstore.members
            if member.worker.worker_id == worker_id and member.HasField("believed")
        ]
        for each in facts.processes
        if each.said is not None and each.said.HasField("kvstore")
    ]
    steady = [told[0] for told in per_kvstore if len(told) > 1 and all(t == told[0] for t in told)]
    return any(digest != steady[0] for digest in steady)
