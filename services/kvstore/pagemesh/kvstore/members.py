"""Who is in the mesh: registrations, event numbers, heartbeats. No blocks, no grpc, no waiting.

A member is one incarnation (worker_id and epoch). It stays one as long as its publishing stream is
open and something arrives on it; between registration and the stream, the same time limit holds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from pagemesh.errors import FailedPreconditionError
from pagemesh.kvstore.changes import Change, ChangeLog, EventKind, Joined, Left, Loaded, load_of
from pagemesh.kvstore.known_peers import RemoteMember, RemoteMembers
from pagemesh.kvstore.registration import check_registration, stale_epoch, unknown_worker
from pagemesh.v1 import types_pb2

MISSED_HEARTBEATS = 3
"""A member is dropped when nothing arrived for so many heartbeat intervals."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """What is to be done with an event."""

    forget: bool = False
    """What is known of the worker's blocks has become doubtful and must go first."""
    apply: bool = False
    """The event continues what is known and is to be applied."""
    resync: bool = False
    """The worker is to be asked for a snapshot."""


IGNORE = Verdict()


@dataclass(eq=False, slots=True)
class PublishStream:
    """One open publishing stream; equal only to itself."""

    worker_id: str
    epoch: int
    differs: bool = False
    """Whether the worker's own count of its blocks was another one when it was last compared with the index."""
    num_differences: int = 0
    """How often it was."""


@dataclass(slots=True)
class Member:
    """What is known of one incarnation."""

    info: types_pb2.WorkerInfo
    joined: Change
    last_seen: float
    loaded: Change | None = None
    stream: PublishStream | None = None
    """The stream that speaks for it; a later one replaces it."""
    last_sequence: int = 0
    in_sync: bool = True
    """Whether its blocks are known; a new incarnation has none."""
    has_moved: bool = False
    """Whether it was a member at another replica: the index may have its blocks."""
    is_index_behind: bool = False
    """Whether the index could not be told of everything: as if there were a gap in the events."""
    resync_wanted: bool = False
    """Whether it was asked for a snapshot that has not begun yet."""

    @property
    def load(self) -> types_pb2.WorkerLoad | None:
        """Its last reported load."""
        return load_of(self.loaded)


class Members:
    """The members that publish here. `clock` gives seconds, `log` is told every change."""

    def __init__(
        self, log: ChangeLog, clock: Callable[[], float], heartbeat_interval: float
    ) -> None:
        self._log = log
        self._clock = clock
        self.silence_limit = MISSED_HEARTBEATS * heartbeat_interval
        """Seconds after which a worker of which nothing was heard is dropped."""
        self._members: dict[str, Member] = {}
        self.elsewhere = RemoteMembers(log)
        """Those that publish to other replicas."""

    def __iter__(self) -> Iterator[Member]:
        return iter(self._members.values())

    def get(self, worker_id: str) -> Member | None:
        """The present incarnation of a worker."""
        return self._members.get(worker_id)

    def register(self, info: types_pb2.WorkerInfo) -> tuple[Member, bool]:
        """Make an incarnation a member; whether that is new, or it had been one already.

        Raises as `check_registration` beside all members, wherever they publish.
        """
        check_registration(info, (member.info for member in (*self, *self.elsewhere)))
        known = self._members.get(info.worker_id)
        if known is not None and known.info == info:
            known.last_seen = self._clock()
            return known, False
        moved = self.elsewhere.give(info)
        if moved is not None:
            member = Member(info, moved.joined, last_seen=self._clock(), loaded=moved.loaded)
            member.has_moved = True
        else:
            member = Member(info, self._log.append(Joined(info)), last_seen=self._clock())
        self._members[info.worker_id] = member
        return member, True

    def attach(self, worker_id: str, epoch: int) -> PublishStream:
        """Begin a stream of events. It alone speaks for the worker until it ends or another begins.

        Behind another one that has not ended, what is known of the worker's blocks is doubtful: that one's
        last events may have been taken in by half.

        Raises FailedPreconditionError when this incarnation is not a member.
        """
        member = self._members.get(worker_id)
        if member is None or epoch > member.info.epoch:
            raise unknown_worker(worker_id, epoch)
        if epoch < member.info.epoch:
            raise stale_epoch(worker_id, epoch, member.info.epoch)
        if member.stream is not None:
            member.in_sync = member.resync_wanted = False
        member.stream = PublishStream(worker_id, epoch)
        member.last_seen = self._clock()
        return member.stream

    def accept(self, stream: PublishStream, sequence: int, kind: EventKind) -> Verdict:
        """Count an event of a stream and say what is to be done with it.

        Repeated and late events are ignored. Behind a gap in the numbers, what is known of the
        worker's blocks is doubtful until it says that it begins anew. Raises FailedPreconditionError
        when the stream no longer speaks for the worker.
        """
        member = self._speaker(stream)
        member.last_seen = self._clock()
        if sequence <= member.last_sequence:
            return IGNORE
        is_behind = member.is_index_behind
        has_gap = is_behind or sequence > member.last_sequence + 1
        member.last_sequence = sequence
        member.is_index_behind = False
        if kind in (EventKind.CLEARED, EventKind.RESUMED):
            member.in_sync = True
            member.resync_wanted = False
            return Verdict(forget=is_behind and kind is EventKind.CLEARED, apply=True)
        if has_gap:
            member.in_sync = False
            member.resync_wanted = False
        if member.in_sync:
            return Verdict(apply=True)
        resync = not member.resync_wanted
        member.resync_wanted = True
        return Verdict(forget=has_gap, apply=kind is EventKind.BEAT, resync=resync)

    def hear(self, stream: PublishStream) -> None:
        """A worker's silence begins now, if the stream speaks for it still."""
        member = self._members.get(stream.worker_id)
        if member is not None and member.stream is stream:
            member.last_seen = self._clock()

    def distrust(self, stream: PublishStream) -> None:
        """What is known of the worker's blocks is doubtful, and it is being asked for a snapshot."""
        member = self._speaker(stream)
        member.in_sync = False
        member.resync_wanted = True

    def report_load(self, stream: PublishStream, load: types_pb2.WorkerLoad) -> None:
        """Note a worker's load; one that did not change is no change."""
        member = self._speaker(stream)
        if load != member.load:
            member.loaded = self._log.append(Loaded(stream.worker_id, load))

    def detach(self, stream: PublishStream) -> bool:
        """End a stream, and with it the membership, if it still speaks for the worker; whether it did."""
        member = self._members.get(stream.worker_id)
        if member is None or member.stream is not stream:
            return False
        self.drop(stream.worker_id)
        return True

    def drop(self, worker_id: str) -> None:
        """End a membership."""
        del self._members[worker_id]
        self._log.append(Left(worker_id))

    def hand_over(self, worker_id: str, owner: str) -> None:
        """A member publishes to another replica by now; a stream of it that is still open speaks for nobody."""
        member = self._members.pop(worker_id)
        self.elsewhere.take(RemoteMember(member.info, owner, member.joined, member.loaded))

    def silent(self) -> list[str]:
        """Workers of which nothing was heard for too long."""
        heard_before = self._clock() - self.silence_limit
        return [m.info.worker_id for m in self._members.values() if m.last_seen < heard_before]

    def present(self) -> list[Change]:
        """The changes that made the present members, here and elsewhere, what they are, in order of their revisions.

        Whoever followed them up to some revision can go on from there with later changes.
        """
        everybody = (*self, *self.elsewhere)
        changes = [
            c for member in everybody for c in (member.joined, member.loaded) if c is not None
        ]
        return sorted(changes, key=lambda change: change.revision)

    def _speaker(self, stream: PublishStream) -> Member:
        member = self._members.get(stream.worker_id)
        if member is None:
            raise unknown_worker(stream.worker_id, stream.epoch)
        if member.stream is not stream:
            raise FailedPreconditionError(
                f"another stream speaks for worker {stream.worker_id!r} by now",
                reason="STREAM_REPLACED",
            )
        return member
