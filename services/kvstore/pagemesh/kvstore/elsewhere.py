"""Workers that publish to other replicas, as this one knows them; nobody, where it is the only one."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from pagemesh.kvstore.changes import Change, ChangeLog, Joined, Left, Loaded, load_of
from pagemesh.v1 import types_pb2


@dataclass(slots=True)
class RemoteMember:
    """One incarnation at another replica."""

    info: types_pb2.WorkerInfo
    owner: str
    """The replica."""
    joined: Change
    loaded: Change | None = None

    @property
    def load(self) -> types_pb2.WorkerLoad | None:
        """Its last load that the other replica told."""
        return load_of(self.loaded)


class Elsewhere:
    """Remote members by worker_id. The log is told what changes for whoever watches this replica."""

    def __init__(self, log: ChangeLog) -> None:
        self._log = log
        self._members: dict[str, RemoteMember] = {}

    def __len__(self) -> int:
        return len(self._members)

    def __iter__(self) -> Iterator[RemoteMember]:
        return iter(self._members.values())

    def get(self, worker_id: str) -> RemoteMember | None:
        """The incarnation that is elsewhere."""
        return self._members.get(worker_id)

    def see(self, info: types_pb2.WorkerInfo, owner: str) -> None:
        """An incarnation is at a replica: it joined, or replaced an older one, or was known."""
        known = self._members.get(info.worker_id)
        if known is not None and known.info == info:
            known.owner = owner
        else:
            self._members[info.worker_id] = RemoteMember(
                info, owner, self._log.append(Joined(info))
            )

    def take(self, member: RemoteMember) -> None:
        """A member of this replica is at another one by now, which is no news for those who watch."""
        self._members[member.info.worker_id] = member

    def give(self, info: types_pb2.WorkerInfo) -> RemoteMember | None:
        """A worker publishes here from now on; what was known of the same incarnation."""
        known = self._members.pop(info.worker_id, None)
        return known if known is not None and known.info == info else None

    def drop(self, worker_id: str) -> None:
        """A worker is at no replica any more."""
        del self._members[worker_id]
        self._log.append(Left(worker_id))

    def report_load(self, worker_id: str, load: types_pb2.WorkerLoad) -> None:
        """A worker's load was told; one that did not change is no change, and here those are passed over."""
        member = self._members.get(worker_id)
        if member is not None and load != member.load:
            member.loaded = self._log.append(Loaded(worker_id, load))
