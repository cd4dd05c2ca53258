"""Who is in the mesh: registrations, event numbers, heartbeats. No blocks, no grpc, no waiting.

A member is one incarnation (worker_id and epoch). It stays one as long as its publishing stream is
open and something arrives on it; between registration and the stream, the same time limit holds.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from pagemesh.errors import FailedPreconditionError, InvalidRequestError
from pagemesh.kvship.layout import describe_layout
from pagemesh.kvstore.changes import Change, ChangeLog, Joined, Left, Loaded
from pagemesh.v1 import types_pb2

MISSED_HEARTBEATS = 3
"""A member is dropped when nothing arrived for so many heartbeat intervals."""


class EventKind(enum.Enum):
    """What a worker says, as far as its numbering is concerned."""

    CHANGED = "changed"
    """Blocks were stored or removed; or what it holds behind all that, in short."""
    CLEARED = "cleared"
    """Its cache is empty: from here on its blocks are known whatever was missed before."""
    BEAT = "beat"
    """It is alive."""


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
    resync_wanted: bool = False
    """Whether it was asked for a snapshot that has not begun yet."""

    @property
    def load(self) -> types_pb2.WorkerLoad | None:
        """Its last reported load."""
        if self.loaded is None:
            return None
        assert isinstance(self.loaded.event, Loaded)
        return self.loaded.event.load


class Members:
    """All present members. `clock` gives seconds, `log` is told every change."""

    def __init__(
        self, log: ChangeLog, clock: Callable[[], float], heartbeat_interval: float
    ) -> None:
        self._log = log
        self._clock = clock
        self._silence_limit = MISSED_HEARTBEATS * heartbeat_interval
        self._members: dict[str, Member] = {}

    def __len__(self) -> int:
        return len(self._members)

    def __iter__(self) -> Iterator[Member]:
        return iter(self._members.values())

    def get(self, worker_id: str) -> Member | None:
        """The present incarnation of a worker."""
        return self._members.get(worker_id)

    def register(self, info: types_pb2.WorkerInfo) -> tuple[Member, bool]:
        """Make an incarnation a member; whether that is new, or it had been one already.

        Raises InvalidRequestError for incomplete facts, and FailedPreconditionError when a newer
        incarnation is a member, or another process under the same name and epoch, or a worker of the
        same model whose KV blocks have another shape.
        """
        _check_info(info)
        known = self._members.get(info.worker_id)
        if known is not None and info.epoch <= known.info.epoch:
            if info.epoch < known.info.epoch:
                raise _stale_epoch(info.worker_id, info.epoch, known.info.epoch)
            if info != known.info:
                raise FailedPreconditionError(
                    f"worker {info.worker_id!r} with epoch {info.epoch} is already registered from "
                    f"{known.info.address}, now it comes from {info.address}",
                    reason="DUPLICATE_WORKER",
                    param="worker",
                )
            known.last_seen = self._clock()
            return known, False
        self._require_same_layout(info)
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
            raise _unknown_worker(worker_id, epoch)
        if epoch < member.info.epoch:
            raise _stale_epoch(worker_id, epoch, member.info.epoch)
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
        has_gap = sequence > member.last_sequence + 1
        member.last_sequence = sequence
        if kind is EventKind.CLEARED:
            member.in_sync = True
            member.resync_wanted = False
            return Verdict(apply=True)
        if has_gap:
            member.in_sync = False
            member.resync_wanted = False
        if member.in_sync:
            return Verdict(apply=True)
        resync = not member.resync_wanted
        member.resync_wanted = True
        return Verdict(forget=has_gap, apply=kind is EventKind.BEAT, resync=resync)

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

    def silent(self) -> list[str]:
        """Workers of which nothing was heard for too long."""
        heard_before = self._clock() - self._silence_limit
        return [m.info.worker_id for m in self._members.values() if m.last_seen < heard_before]

    def present(self) -> list[Change]:
        """The changes that made the present members what they are, in order of their revisions.

        Whoever followed them up to some revision can go on from there with later changes.
        """
        changes = [change for m in self for change in (m.joined, m.loaded) if change is not None]
        return sorted(changes, key=lambda change: change.revision)

    def _require_same_layout(self, info: types_pb2.WorkerInfo) -> None:
        # Such workers could never exchange KV, and half of all plans would fail when it is too late.
        for other in (member.info for member in self._members.values()):
            is_peer = other.worker_id != info.worker_id
            is_same_model = other.model_fingerprint == info.model_fingerprint
            if is_peer and is_same_model and other.kv_layout != info.kv_layout:
                raise FailedPreconditionError(
                    f"worker {info.worker_id!r} has KV blocks of {describe_layout(info.kv_layout)}, "
                    f"but {other.worker_id!r} at {other.address} has {describe_layout(other.kv_layout)} "
                    "for the same model",
                    reason="LAYOUT_MISMATCH",
                    param="worker.kv_layout",
                )

    def _speaker(self, stream: PublishStream) -> Member:
        member = self._members.get(stream.worker_id)
        if member is None:
            raise _unknown_worker(stream.worker_id, stream.epoch)
        if member.stream is not stream:
            raise FailedPreconditionError(
                f"another stream speaks for worker {stream.worker_id!r} by now",
                reason="STREAM_REPLACED",
            )
        return member


def _check_info(info: types_pb2.WorkerInfo) -> None:
    given: dict[str, object] = {
        "worker_id": info.worker_id,
        "epoch": info.epoch,
        "role": info.role,
        "address": info.address,
        "model_fingerprint": info.model_fingerprint,
        "block_count": info.block_count,
    }
    for name, value in given.items():
        if not value:
            raise InvalidRequestError(
                f"worker.{name} is {value!r}, but must be set", param=f"worker.{name}"
            )


def _unknown_worker(worker_id: str, epoch: int) -> FailedPreconditionError:
    return FailedPreconditionError(
        f"worker {worker_id!r} with epoch {epoch} is not registered",
        reason="UNKNOWN_WORKER",
        param="worker_id",
    )


def _stale_epoch(worker_id: str, epoch: int, present: int) -> FailedPreconditionError:
    return FailedPreconditionError(
        f"worker {worker_id!r} comes with epoch {epoch}, but epoch {present} is registered",
        reason="STALE_EPOCH",
        param="epoch",
    )
