"""Whom a process names: the others that are to be asked next."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from pagemesh.addresses import WILDCARD_HOSTS
from pagemesh.cli.doctor.facts import Lead
from pagemesh.v1 import process_pb2, types_pb2


def leads_of(said: process_pb2.DescribeResponse) -> Iterator[Lead]:
    """All that can be reached by an address; those that left the mesh too."""
    for lead in _all_leads(said):
        if lead.address and lead.address.rpartition(":")[0] not in WILDCARD_HOSTS:
            yield lead


def _all_leads(said: process_pb2.DescribeResponse) -> Iterator[Lead]:
    match said.WhichOneof("part"):
        case "router":
            yield Lead(said.address, "router", "itself")
            yield from _kvstores(said.router.kvstore_addresses, "the router")
            for seen in said.router.workers:
                yield _worker(seen.worker, "the router")
        case "worker":
            yield from _kvstores(said.worker.kvstore_addresses, said.worker.worker.worker_id)
        case "kvstore":
            for watcher in said.kvstore.watchers:
                yield Lead(watcher, "router", "the kvstore")
            for member in said.kvstore.members:
                yield _worker(member.worker, "the kvstore")
            for refused in said.kvstore.refused:
                yield _worker(refused.worker, "the kvstore")
            for departed in said.kvstore.departed:
                age = departed.age.ToTimedelta().total_seconds()
                yield _worker(departed.worker, "the kvstore", age)


def _kvstores(addresses: Iterable[str], source: str) -> Iterator[Lead]:
    for address in addresses:
        yield Lead(address, "kvstore", source)


def _worker(worker: types_pb2.WorkerInfo, source: str, left_seconds: float | None = None) -> Lead:
    return Lead(worker.address, worker.worker_id, source, left_seconds)
