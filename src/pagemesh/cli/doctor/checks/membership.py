"""Whether everybody knows everybody: workers, kvstores and routers tell the same of who is in the mesh."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from pagemesh.cli.doctor.facts import Examined, Facts
from pagemesh.cli.doctor.findings import Finding, Result, Status
from pagemesh.cli.doctor.words import count, join
from pagemesh.v1 import process_pb2

NAME: Final = "membership"

_DUPLICATES: Final = ("STALE_EPOCH", "DUPLICATE_WORKER")


def check(facts: Facts) -> Result:
    """Names who is not in the mesh though it runs, who is there twice, and who is not known to a router."""
    if not any(process.said for process in facts.processes):
        return Result(NAME, "nobody told whom it knows", is_skipped=True)
    twins = dict(_twins(facts))
    findings = [
        *twins.values(),
        *(
            finding
            for worker, description in facts.workers()
            for finding in _outside(facts, worker, description)
            if description.worker.worker_id not in twins
        ),
        *_cut_off(facts),
        *_stale(facts),
        *_apart(facts),
        *(finding for name, router in facts.routers() for finding in _blind(facts, name, router)),
    ]
    summary = (
        f"{count(len(facts.known_workers()), 'worker')}, {count(len(facts.kvstores()), 'kvstore')} and"
        f" {count(len(facts.routers()), 'router')} know each other"
    )
    return Result(NAME, summary if not findings else "not everybody knows everybody", findings)


def _twins(facts: Facts) -> Iterator[tuple[str, Finding]]:
    """Workers of one name, by that: only one of them can be in the mesh."""
    members = facts.members()
    places: dict[str, dict[str, None]] = {}
    for worker, description in facts.workers():
        places.setdefault(description.worker.worker_id, {})[worker.address] = None
    for _, kvstore in facts.kvstores():
        for refused in kvstore.refused:
            if refused.reason in _DUPLICATES and refused.worker.worker_id in members:
                known = members[refused.worker.worker_id].worker.address
                places.setdefault(refused.worker.worker_id, {}).update(
                    {known: None, refused.worker.address: None}
                )
    for worker_id, addresses in places.items():
        if len(addresses) > 1:
            yield (
                worker_id,
                Finding(
                    Status.WRONG,
                    worker_id,
                    f"{len(addresses)} processes call themselves so, at"
                    f" {join(list(addresses))}: only the one that started last is in the mesh, the other gets no"
                    " requests",
                    "End the one that is left over, or give each its own --worker-id",
                ),
            )


def _outside(
    facts: Facts, worker: Examined, description: process_pb2.WorkerDescription
) -> Iterator[Finding]:
    name = facts.name(worker)
    if worker.said is None or worker.said.state != process_pb2.PROCESS_STATE_SERVING:
        return
    is_member = description.worker.worker_id in facts.members()
    match description.membership:
        case process_pb2.MEMBERSHIP_ALONE:
            yield Finding(
                Status.WARNING,
                name,
                "It was told of no kvstore: no router knows of it",
                "Start it with --kvstore, unless it is meant to be called directly",
            )
        case process_pb2.MEMBERSHIP_REFUSED if not _is_told_as_refused(facts, name):
            yield Finding(
                Status.WRONG,
                name,
                f"The kvstore at {description.kvstore_address} refuses it: {description.membership_error}",
                "Correct what the kvstore names, and restart the worker",
            )
        case process_pb2.MEMBERSHIP_JOINED if facts.kvstores() and not is_member:
            yield Finding(
                Status.WRONG,
                name,
                f"It publishes to the kvstore at {description.kvstore_address}, and no kvstore that answers has it"
                " as a member",
                "See whether it and the routers were given the same --kvstore",
            )


def _cut_off(facts: Facts) -> Iterator[Finding]:
    """Workers that reach no kvstore, all of one kvstore together."""
    by_kvstore: dict[str, list[tuple[str, str]]] = {}
    for worker, description in facts.workers():
        if description.membership == process_pb2.MEMBERSHIP_AWAY:
            told = facts.name(worker), description.membership_error
            by_kvstore.setdefault(description.kvstore_address, []).append(told)
    for address, workers in by_kvstore.items():
        yield Finding(
            Status.WRONG,
            join(sorted(name for name, _ in workers)),
            f"No way to the kvstore at {address} ({workers[0][1] or 'no answer yet'}): what they hold is not known,"
            " and routers that start now do not know of them",
            "If the kvstore runs, check the way to it from where they run; else start it, and all workers come"
            " back by themselves",
        )


def _is_told_as_refused(facts: Facts, worker_id: str) -> bool:
    """Whether the check of models names it, from the kvstore's own words."""
    return any(
        refused.worker.worker_id == worker_id and refused.reason not in _DUPLICATES
        for _, kvstore in facts.kvstores()
        for refused in kvstore.refused
        if refused.reason in ("MODEL_MISMATCH", "LAYOUT_MISMATCH")
    )


def _stale(facts: Facts) -> Iterator[Finding]:
    members = facts.members()
    for worker, description in facts.workers():
        own = description.worker
        member = members.get(own.worker_id)
        if member is None or not own.epoch or member.worker.address != own.address:
            continue
        if member.worker.epoch != own.epoch:
            yield Finding(
                Status.WRONG,
                facts.name(worker),
                f"It is in epoch {own.epoch}, and the kvstore knows epoch {member.worker.epoch} of it: KV of one is"
                " refused in the name of the other",
                "It should pass within seconds of a restart; if it stays, check the clock of its machine, from"
                " which epochs are made, and restart it",
            )


def _apart(facts: Facts) -> Iterator[Finding]:
    """Kvstores that do not have the same members."""
    rosters = {
        name: {member.worker.worker_id for member in kvstore.members}
        for name, kvstore in facts.kvstores()
    }
    everybody = set().union(*rosters.values()) if rosters else set()
    for name, roster in rosters.items():
        if missing := sorted(everybody - roster):
            yield Finding(
                Status.WRONG,
                name,
                f"It does not know {join(missing)}, whom another kvstore has as members: routers that use it send"
                " them nothing",
                "Give all kvstores the same --index redis://host:port/db, through which they share who is there",
            )


def _blind(facts: Facts, name: str, router: process_pb2.RouterDescription) -> Iterator[Finding]:
    if not router.is_following:
        yield Finding(
            Status.WRONG,
            name,
            f"The kvstore at {router.kvstore_address} tells it nothing at the moment: it goes by what it heard last,"
            " and routes by load, without knowing who holds what",
            "Start the kvstore if it is down, or check the way to it; the router follows it again by itself",
        )
    answering = {worker.worker.worker_id for _, worker in facts.workers()}
    seen = {each.worker.worker_id: each for each in router.workers}
    for worker_id, each in seen.items():
        is_closed = each.session == process_pb2.SESSION_STATE_CLOSED
        # Who answers nobody is named by the check of processes.
        if is_closed and worker_id in answering:
            why = f" ({each.session_end})" if each.session_end else ""
            yield Finding(
                Status.WRONG,
                worker_id,
                f"It answers here, but {name} has no session with it{why}: it gets no requests from there",
                f"Check the way from the router's machine to {each.worker.address}, which the worker gives as its"
                " address; --advertise sets another",
            )
    unseen = sorted(set(facts.members()) - set(seen))
    if unseen and router.is_following:
        yield Finding(
            Status.WRONG,
            name,
            f"It does not know {join(unseen)}, whom a kvstore has as members",
            "See whether routers and workers were given the same --kvstore",
        )
