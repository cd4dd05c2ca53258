"""Whether workers reach each other, and how fast KV travels between them."""

from __future__ import annotations

from collections.abc import Iterator
from statistics import median
from typing import Final

from pagemesh.cli.doctor.facts import Examined, Facts
from pagemesh.cli.doctor.findings import Finding, Result, Status
from pagemesh.cli.doctor.words import ago, count, join
from pagemesh.v1 import process_pb2

NAME: Final = "links"

MUCH_SLOWER: Final = 10.0
"""A link is worth a word when it is so many times slower than the others."""

RECENT_SECONDS: Final = 60.0
"""For so long a failure counts as one of now."""


def check(facts: Facts) -> Result:
    """What workers came to that tried to reach each other, what they measured, and what failed lately."""
    num_tried = sum(len(response.peers) for response in facts.reached.values())
    findings = [
        *_unreached(facts),
        *_failed_lately(facts),
        *_slow(facts),
        *_apart_on_one_host(facts),
    ]
    if not num_tried and not findings:
        return Result(NAME, "no two workers that could exchange KV", is_skipped=True)
    return Result(NAME, f"{count(num_tried, 'way')} between workers tried", findings)


def _unreached(facts: Facts) -> Iterator[Finding]:
    names = {worker.address: facts.name(worker) for worker, _ in facts.workers()}
    known = facts.known_workers()
    answering = {description.worker.worker_id for _, description in facts.workers()}
    failures: dict[str, dict[str, str]] = {}
    for address, response in facts.reached.items():
        for peer in response.peers:
            if peer.error or peer.answered_by != peer.worker_id:
                told = peer.error or f"{peer.answered_by or 'something else'} answers there"
                failures.setdefault(peer.worker_id, {})[names[address]] = told
    for worker_id, who in failures.items():
        if worker_id not in known:
            # It left while it was tried.
            continue
        where = known[worker_id].address
        # One that answers nobody is named by the check of processes.
        if worker_id in answering or not _answers_nobody(facts, where):
            told = next(iter(who.values()))
            yield Finding(
                Status.WRONG,
                worker_id,
                f"{join(sorted(who))} cannot reach it at {where}, which it gives as its address ({told}): no KV"
                " comes from it, and prompts are computed again",
                "Start it with --advertise host:port, as other workers can reach it, and let them through to that"
                " port",
            )


def _answers_nobody(facts: Facts, address: str) -> bool:
    return any(each.address == address and each.said is None for each in facts.processes) and (
        not any(description.worker.address == address for _, description in facts.workers())
    )


def _failed_lately(facts: Facts) -> Iterator[Finding]:
    for worker, description in facts.workers():
        for failure in description.kv_failures:
            age = failure.age.ToTimedelta().total_seconds()
            if age <= RECENT_SECONDS:
                yield Finding(
                    Status.WARNING,
                    facts.name(worker),
                    f"{failure.worker_id} did not deliver KV to it {ago(age)} ({failure.message}),"
                    f" {count(failure.count, 'time')} since it started. Requests went on, and computed the KV"
                    " themselves",
                    f"See the log of {failure.worker_id} and the way between the two, if it goes on",
                )


def _slow(facts: Facts) -> Iterator[Finding]:
    rates = {
        (link.worker_id, worker_id): link.bytes_per_second
        for worker_id, member in facts.members().items()
        for link in member.load.links
        if link.bytes_per_second
    }
    if len(rates) < 3:
        return
    usual = median(rates.values())
    for (sender, receiver), rate in rates.items():
        if rate * MUCH_SLOWER < usual:
            yield Finding(
                Status.WARNING,
                receiver,
                f"KV from {sender} comes with {_mib(rate)} MiB/s, and over other links with {_mib(usual)} MiB/s:"
                " prompts are rather computed again than sent over this one",
                "Check the network between the two machines, and what else uses it",
            )


def _mib(rate: float) -> str:
    return f"{rate / 2**20:.3g}"


def _apart_on_one_host(facts: Facts) -> Iterator[Finding]:
    """Workers on one machine whose KV goes through the network all the same, together for each reason."""
    workers = facts.workers()
    found: dict[tuple[str, str], set[str]] = {}
    for place, (one, mine) in enumerate(workers):
        for other, theirs in workers[place + 1 :]:
            if one.said is None or other.said is None or not _could_share(one.said, other.said):
                continue
            why = _why_apart(one, mine, other, theirs)
            if why is not None:
                found.setdefault(why, set()).update((facts.name(one), facts.name(other)))
    for (reason, advice), names in found.items():
        yield Finding(
            Status.NOTE,
            join(sorted(names)),
            f"They run on one machine, and KV between them goes through the network: {reason}",
            advice,
        )


def _could_share(one: process_pb2.DescribeResponse, other: process_pb2.DescribeResponse) -> bool:
    mine, theirs = one.worker.worker, other.worker.worker
    is_same_kv = (mine.model_fingerprint, mine.arithmetic) == (
        theirs.model_fingerprint,
        theirs.arithmetic,
    )
    return bool(one.host.boot_id) and one.host.boot_id == other.host.boot_id and is_same_kv


def _why_apart(
    one: Examined,
    mine: process_pb2.WorkerDescription,
    other: Examined,
    theirs: process_pb2.WorkerDescription,
) -> tuple[str, str] | None:
    """The reason, and what to do."""
    assert one.said is not None and other.said is not None
    if not (mine.worker.model_fingerprint and theirs.worker.model_fingerprint):
        return None
    if not (mine.shares_kv_memory and theirs.shares_kv_memory):
        return (
            "not all of them share their memory",
            "Start them without --no-share-kv-memory, unless that is meant",
        )
    if one.said.host.user_id != other.said.host.user_id:
        return (
            "they run as different users, of whom one may not read the other's memory",
            "Run both as the same user",
        )
    if one.said.host.pid_namespace != other.said.host.pid_namespace:
        return (
            "they run in different containers, which do not see each other's processes",
            "Let the containers share their PID namespace",
        )
    if theirs.worker.worker_id in mine.unreadable_worker_ids or (
        mine.worker.worker_id in theirs.unreadable_worker_ids
    ):
        return (
            "one could not read the other's memory when it tried",
            "See the log of both for `KV from a worker on this host travels in messages`, which says why",
        )
    return None
