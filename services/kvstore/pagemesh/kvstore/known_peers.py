"""Those whom a kvstore has to do with and that are no members of its own.

Some watch, were refused or have left: nothing is decided by that. It is remembered for whoever looks for what is
wrong, and only for a while. Others are workers that publish to other replicas, as this one knows them; nobody, where
it is the only one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final, NamedTuple, TypeVar
from urllib.parse import unquote

from pagemesh.addresses import WILDCARD_HOSTS
from pagemesh.errors import PagemeshError
from pagemesh.kvstore.changes import Change, ChangeLog, Joined, Left, Loaded, load_of
from pagemesh.v1 import types_pb2

Key = TypeVar("Key")
Remembered = TypeVar("Remembered")

MAX_REMEMBERED: Final = 64
"""Workers of each kind; the one that was noted first goes first."""

REFUSED_SECONDS: Final = 10.0
"""A worker that is refused asks again every half second: one that no longer does is gone, or at another replica."""

DEPARTED_SECONDS: Final = 600.0
"""For so long a worker that left may still be missed."""

_MAX_INFO_BYTES: Final = 16_384
_MAX_WATCHER_LENGTH: Final = 256


class Refused(NamedTuple):
    """A worker that may not be a member."""

    info: types_pb2.WorkerInfo
    reason: str
    message: str
    at: float


class Departed(NamedTuple):
    """A worker that was a member."""

    info: types_pb2.WorkerInfo
    at: float


class KnownPeers:
    """Of one kvstore. `clock` gives seconds. Belongs to one event loop."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self.clock = clock
        self._watchers: list[str] = []
        # Two workers of one name are told apart by their addresses.
        self._refused: dict[tuple[str, str], Refused] = {}
        self._departed: dict[str, Departed] = {}

    @contextmanager
    def watching(self, watcher: str, peer: str) -> Iterator[None]:
        """As long as a server watches; `peer` is where its call comes from, as gRPC says: "ipv4:host:port"."""
        address = watcher_address(watcher, peer)
        self._watchers.append(address)
        try:
            yield
        finally:
            self._watchers.remove(address)

    def refuse(self, info: types_pb2.WorkerInfo, error: PagemeshError) -> None:
        """A worker was refused."""
        if info.ByteSize() <= _MAX_INFO_BYTES:
            key = info.worker_id, info.address
            self._refused.pop(key, None)
            self._refused[key] = Refused(info, error.reason, error.message, self.clock())
            _bound(self._refused)

    def admit(self, info: types_pb2.WorkerInfo) -> None:
        """A worker is a member."""
        self._refused.pop((info.worker_id, info.address), None)
        self._departed.pop(info.worker_id, None)

    def depart(self, info: types_pb2.WorkerInfo) -> None:
        """A worker is no member any more."""
        self._departed.pop(info.worker_id, None)
        self._departed[info.worker_id] = Departed(info, self.clock())
        _bound(self._departed)

    def watchers(self) -> list[str]:
        """host:port of the servers that watch now, as far as they told."""
        return sorted(set(self._watchers) - {""})

    def refused(self) -> list[Refused]:
        """Who was refused lately and is no member."""
        since = self.clock() - REFUSED_SECONDS
        return [refused for refused in self._refused.values() if refused.at >= since]

    def departed(self) -> list[Departed]:
        """Who left lately and is not back."""
        since = self.clock() - DEPARTED_SECONDS
        return [departed for departed in self._departed.values() if departed.at >= since]


def watcher_address(watcher: str, peer: str) -> str:
    """host:port of a watcher's server; `peer` is where gRPC says that the call comes from, "ipv4:host:port"."""
    host, _, port = watcher.rpartition(":")
    kind, _, address = peer.partition(":")
    if host in WILDCARD_HOSTS and kind in ("ipv4", "ipv6"):
        # gRPC writes the brackets of an IPv6 address as in an URL.
        host = unquote(address).rpartition(":")[0]
    return f"{host}:{port}" if host and len(watcher) <= _MAX_WATCHER_LENGTH else ""


def _bound(remembered: dict[Key, Remembered]) -> None:
    if len(remembered) > MAX_REMEMBERED:
        del remembered[next(iter(remembered))]


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


class RemoteMembers:
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
